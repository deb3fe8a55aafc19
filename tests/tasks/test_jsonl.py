import csv
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from agentgrpo.core.errors import ConfigError, DataError, MalformedRows
from agentgrpo.core.types import Message, Passage, Task
from agentgrpo.tasks.jsonl import export, jsonl
from agentgrpo.tasks.questions.checking import check
from agentgrpo.tasks.records import read_passages
from agentgrpo.worlds.almanac.dataset import Almanac


def write(path: Path, *lines: object) -> str:
    """Strings as they are, anything else as JSON."""
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return write(tmp_path / "corpus.jsonl", {"id": "p1", "text": "Paris is in France."})


def test_a_users_files(tmp_path: Path) -> None:
    folder = tmp_path / "my data"
    folder.mkdir()
    questions = write(
        folder / "questions.jsonl",
        {"id": 7, "question": " Where is Paris? ", "answers": "France", "split": "test", "topic": "towns"},
        "",
        {"id": "b", "question": "How old?", "answers": [12, "twelve"], "split": "train"},
    )
    documents = write(
        folder / "corpus.jsonl",
        {"id": "p1", "text": "Paris is in France."},
        {"id": 2, "text": "Bern.", "title": "Bern", "url": "https://example.org/bern"},
    )
    web = write(folder / "web.jsonl", {"id": "w1", "text": "News of Paris."})
    data = jsonl(questions=questions, corpus=documents, web_corpus=web)
    assert data.split("test") == [
        Task(
            id="7",
            messages=(Message(role="user", content="Where is Paris?"),),
            references=("France",),
            metadata={"split": "test", "topic": "towns"},
            data_source="questions",
        )
    ]
    assert [t.references for t in data.split("train")] == [("12", "twelve")]
    assert data.split("dev") == []
    assert data.corpora() == {
        "vdb": (
            Passage(id="p1", text="Paris is in France."),
            Passage(id="2", text="Bern.", title="Bern", url="https://example.org/bern"),
        ),
        "web": (Passage(id="w1", text="News of Paris."),),
    }


def test_tasks_for_tools_need_no_corpus(tmp_path: Path) -> None:
    row = {"id": "a", "question": "q", "answers": "b", "split": "train", "files": {"prices.txt": "nut 4"}}
    questions = write(tmp_path / "q.jsonl", row)
    data = jsonl(questions=questions)
    assert data.corpora() == {}
    assert data.split("train")[0].metadata == {"split": "train", "files": {"prices.txt": "nut 4"}}
    with pytest.raises(ConfigError, match=r"task\.web_corpus=w\.jsonl without task\.corpus"):
        jsonl(questions=questions, web_corpus="w.jsonl")


def test_keys_can_be_renamed(tmp_path: Path, corpus: str) -> None:
    questions = write(tmp_path / "q.jsonl", {"qid": "x", "query": "Where?", "golden": ["here"], "split": "dev"})
    data = jsonl(questions=questions, corpus=corpus, id_key="qid", question_key="query", answers_key="golden")
    [task] = data.split("dev")
    assert (task.id, task.question, task.references, task.metadata) == ("x", "Where?", ("here",), {"split": "dev"})


def test_rows_as_trl_has_them_with_ids_made_of_what_they_ask(tmp_path: Path) -> None:
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Buy pears."},
        {"role": "assistant", "content": "How many?"},
        {"role": "user", "content": "Two."},
    ]
    rows: list[dict[str, object]] = [
        {"prompt": "Buy apples.", "wanted": "apples"},
        {"prompt": talk, "answer": "done"},
        {"prompt": [{"role": "user", "content": "Two."}]},
        {"question": "Two."},
    ]
    lines = [{**row, "split": "train"} for row in rows]
    tasks = jsonl(questions=write(tmp_path / "a", *lines)).split("train")
    again = jsonl(questions=write(tmp_path / "b", *lines[::-1])).split("train")
    assert sorted(t.id for t in again) == sorted(t.id for t in tasks)
    [apples] = [t for t in tasks if t.question == "Buy apples."]
    [pears] = [t for t in tasks if len(t.messages) == 4]
    [one, two] = sorted(t.id for t in tasks if t not in (apples, pears))
    assert (apples.references, apples.metadata) == ((), {"wanted": "apples", "split": "train"})
    assert (pears.references, pears.metadata) == (("done",), {"split": "train"})
    assert [(m.role, m.content) for m in pears.messages] == [(m["role"], m["content"]) for m in talk]
    assert {t.id: t.is_messages for t in tasks} == {apples.id: False, pears.id: True, one: True, two: False}
    assert two == f"{one}#2"  # one question, twice
    assert len({one, apples.id, pears.id}) == 3


def test_rows_are_split_by_the_hash_of_their_id(tmp_path: Path, corpus: str) -> None:
    rows = [{"id": f"q{i}", "question": f"Question {i}?", "answers": "yes"} for i in range(2000)]
    data = jsonl(questions=write(tmp_path / "q.jsonl", *rows), corpus=corpus)
    sizes = {name: len(data.split(name)) for name in ("train", "dev", "test")}
    assert sum(sizes.values()) == 2000
    assert abs(sizes["test"] - 400) < 60
    assert abs(sizes["dev"] - 200) < 45
    fewer = jsonl(questions=write(tmp_path / "q2.jsonl", *rows[500:][::-1]), corpus=corpus)
    assert {t.id for t in fewer.split("test")} == {t.id for t in data.split("test")} & {
        f"q{i}" for i in range(500, 2000)
    }
    other = jsonl(questions=str(tmp_path / "q.jsonl"), corpus=corpus, seed=1)
    assert {t.id for t in other.split("test")} != {t.id for t in data.split("test")}


def test_the_fingerprint_follows_content_not_location(tmp_path: Path, corpus: str) -> None:
    row = {"id": "a", "question": "Where?", "answers": "here"}
    first = jsonl(questions=write(tmp_path / "a.jsonl", row), corpus=corpus)
    (tmp_path / "elsewhere").mkdir()
    moved = jsonl(questions=write(tmp_path / "elsewhere" / "a.jsonl", row), corpus=corpus)
    renamed = jsonl(questions=write(tmp_path / "b.jsonl", row), corpus=corpus)
    changed = jsonl(questions=write(tmp_path / "c.jsonl", row | {"answers": "there"}), corpus=corpus)
    resplit = jsonl(questions=str(tmp_path / "a.jsonl"), corpus=corpus, seed=1)
    assert first.fingerprint == moved.fingerprint
    assert (first.split("train")[0].data_source, renamed.split("train")[0].data_source) == ("a", "b")
    assert len({one.fingerprint for one in (first, renamed, changed, resplit)}) == 4


GOOD = {"id": "a", "question": "Where?", "answers": "here"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"id": "b", ', "not valid JSON"),
        ("[1, 2]", r"\[1, 2\] is not an object"),
        ({"id": "b", "answers": "here"}, "'question' is missing"),
        ({"id": "b", "question": "  ", "answers": "here"}, "'question' is '  '; it must be a non-empty string"),
        (
            {"id": "b", "question": "Where?", "answers": None},
            "'answers' is missing; a text that is not empty is needed",
        ),
        ({"id": "b", "question": "Where?", "answers": []}, r"'answers' is \[\]"),
        ({"id": "b", "question": "Where?", "answers": ["here", ""]}, r"'answers' is \['here', ''\]"),
        ({"id": "b", "question": "Where?", "answers": [None]}, r"'answers' is \[None\]"),
        ({"id": ["b"], "question": "Where?", "answers": "here"}, r"'id' is \['b'\]; it must be a non-empty string"),
        ({"prompt": []}, "prompt: a list of messages whose last one is the user's is needed"),
        (
            {"prompt": [{"role": "assistant", "content": "Hm."}]},
            "prompt: a list of messages whose last one is the user",
        ),
        (
            {"prompt": [{"role": "tool", "content": "4"}]},
            r"prompt\[0\]: role 'tool'; system, user, assistant are allowed",
        ),
        (
            {"prompt": [{"role": "user", "content": ["x"]}]},
            r"prompt\[0\]: 'content' is \['x'\]; it must be a non-empty",
        ),
        ({"prompt": 4}, "'prompt' is 4; it must be a non-empty string"),
        ({"id": "a", "question": "Where?", "answers": "here"}, "id 'a' was used in line 1 already"),
        ({**GOOD, "id": "b", "files": ["a.txt"]}, r"metadata\.files is a list; {name: text} is needed"),
        ({**GOOD, "id": "b", "files": {"a": 4}}, r"metadata\.files 'a'; names and contents must be texts"),
        ({**GOOD, "id": "b", "files": {"../a": ""}}, r"file '\.\./a'; a relative path inside the workspace is allowed"),
        ({**GOOD, "id": "b", "files": {"a": "", "a/b": ""}}, "file 'a/b' lies in 'a', which is a file too; rename one"),
        ({**GOOD, "id": "b", "split": "held out"}, "'split' is 'held out'; train, dev, test are allowed"),
        ('{"id": "b", "question": "\\ud800?", "answers": "here"}', "not valid UTF-8"),
    ],
)
def test_a_bad_line_is_refused_with_file_line_and_reason(
    tmp_path: Path, corpus: str, line: object, reason: str
) -> None:
    questions = write(tmp_path / "q.jsonl", GOOD, "", line)
    with pytest.raises(DataError, match=rf"q\.jsonl, line 3(: |\.){reason}"):
        jsonl(questions=questions, corpus=corpus)


def test_all_bad_lines_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    bad = [*["{oops", {"id": "b"}, {**GOOD, "question": 3}] * 4, GOOD]
    questions = write(tmp_path / "q.jsonl", GOOD, *bad)
    corpus = write(tmp_path / "c.jsonl", {"id": "p1", "text": "x"}, "nothing", {"id": "p1", "text": "y"})
    with pytest.raises(MalformedRows) as refusal:
        jsonl(questions=questions, corpus=corpus)
    head, *rows = str(refusal.value).splitlines()
    assert head == "15 malformed rows; the first 10:"
    assert [row.partition(", ")[2].partition(": ")[0] for row in rows] == [f"line {i}" for i in range(2, 12)]
    assert rows[1].startswith(
        f"  {questions}, line 3: 'question' is missing or empty; the row has id; task.question_key=NAME"
    )
    with pytest.raises(MalformedRows) as refusal:
        jsonl(questions=write(tmp_path / "good.jsonl", GOOD), corpus=corpus)
    assert str(refusal.value).splitlines() == [
        "2 malformed rows:",
        f"  {corpus}, line 2: not valid JSON (Expecting value: line 1 column 1 (char 0)); write one object per line",
        f"  {corpus}, line 3: id 'p1' was used in line 1 already; ids must be unique",
    ]


ROWS = [
    {"id": "a", "question": "Where, then?", "answers": ["here", "at home"], "topic": "towns"},
    {"id": "b", "question": 'The "old" one?', "answers": ["1200"], "topic": "years"},
]


def as_table(path: Path, rows: list[dict[str, object]], written: Callable[[object], object]) -> str:
    """CSV or TSV; `written`: how lists are."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        table.writerow(rows[0])
        table.writerows([[written(v) if isinstance(v, list) else v for v in row.values()] for row in rows])
    return str(path)


@pytest.mark.parametrize("file", ["q.csv", "q.tsv", "as Python writes lists.csv", "q.parquet", "q.json"])
def test_every_kind_of_file_is_the_same_task_set(tmp_path: Path, file: str) -> None:
    passages = [{"id": "p1", "text": "Paris, in France.", "title": "Paris"}, {"id": "p2", "text": "Bern.", "title": ""}]
    lines = jsonl(
        questions=write(tmp_path / "q.jsonl", *ROWS), corpus=write(tmp_path / "c.jsonl", *passages), test_fraction=0
    )
    paths = []
    for name, rows in ((file, ROWS), (f"c-{file}", passages)):
        path = tmp_path / name
        if path.suffix == ".parquet":
            parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        elif path.suffix == ".json":
            path.write_text(json.dumps(rows))
        else:
            as_table(path, rows, repr if "Python" in name else json.dumps)
        paths.append(str(path))
    data = jsonl(questions=paths[0], corpus=paths[1], test_fraction=0)
    assert data.corpora() == lines.corpora()
    for split in ("train", "dev", "test"):
        assert [(t.id, t.messages, t.references, t.metadata) for t in data.split(split)] == [
            (t.id, t.messages, t.references, t.metadata) for t in lines.split(split)
        ]
    report = check([paths[0]])
    assert (report.hurts, report.files[0].questions) == (False, 2)


def test_empty_cells_are_none_and_a_list_that_python_cannot_have_written_is_a_text(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text(
        "id,question,answers,split\n,Where?,,train\n,How?,['a' 'b'],train\n,Who?,[sic],train\n"
    )
    tasks = jsonl(questions=str(tmp_path / "q.csv")).split("train")
    assert [(t.question, t.references) for t in tasks] == [
        ("Where?", ()),
        ("How?", ("['a' 'b']",)),
        ("Who?", ("[sic]",)),
    ]


def test_columns_of_a_table_can_be_renamed(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("qid;query;golden\nx;Where?;here\n")
    (tmp_path / "c.csv").write_text("_id,body,title\np1,Bern.,A town\n")
    named = partial(jsonl, questions=str(tmp_path / "q.csv"), corpus=str(tmp_path / "c.csv"))
    named = partial(named, id_key="qid", question_key="query", answers_key="golden")
    data = named(corpus_keys={"id": "_id", "text": "body"})
    [task] = [*data.split("train"), *data.split("dev"), *data.split("test")]
    assert (task.id, task.question, task.references) == ("x", "Where?", ("here",))
    assert data.corpora()["vdb"] == (Passage(id="p1", title="A town", text="Bern."),)
    with pytest.raises(ConfigError, match=r"corpus_keys\.txt; .* can be renamed\. Did you mean 'text'"):
        named(corpus_keys={"txt": "body"})


def test_a_published_format_needs_no_setting(tmp_path: Path) -> None:
    rows = [{"question": f"Who {i}?", "golden_answers": [str(i)], "id": f"train_{i}"} for i in range(30)]
    data = jsonl(questions=write(tmp_path / "train.jsonl", *rows))
    assert {t.references for s in ("train", "dev", "test") for t in data.split(s)} == {(str(i),) for i in range(30)}


def test_bytes_that_are_no_text(tmp_path: Path, corpus: str) -> None:
    (tmp_path / "q.jsonl").write_bytes(b'{"id": "a", "question": "Wh\xe9re?", "answers": "x"}\n')
    with pytest.raises(DataError, match=r"q\.jsonl, line 1: not valid UTF-8 text; save the file as UTF-8"):
        jsonl(questions=str(tmp_path / "q.jsonl"), corpus=corpus)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (['{"id": "p1"}'], "line 1: 'text' is missing"),
        (['{"id": "p1", "text": "x", "title": [3]}'], r"line 1\.title: \[3\]; a text is needed, or leave 'title' out"),
        (['{"id": "p", "text": "x"}', '{"id": "p", "text": "y"}'], "line 2: id 'p' was used in line 1 already"),
        ([], "has no passages"),
    ],
)
def test_a_bad_corpus(tmp_path: Path, lines: list[str], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_passages(write(tmp_path / "c.jsonl", *lines))


def test_the_other_spelling_of_a_corpus(tmp_path: Path) -> None:
    lines = [{"id": "a", "contents": '"Bern"\nA town.\nOld.'}, {"id": "b", "contents": "No title."}]
    assert read_passages(write(tmp_path / "c.jsonl", *lines)) == (
        Passage(id="a", title="Bern", text="A town.\nOld."),
        Passage(id="b", text="No title."),
    )


def test_missing_and_empty_files(tmp_path: Path, corpus: str) -> None:
    with pytest.raises(DataError, match=r"questions: '.*none\.jsonl' is not a file"):
        jsonl(questions=str(tmp_path / "none.jsonl"), corpus=corpus)
    with pytest.raises(DataError, match="has no questions"):
        jsonl(questions=write(tmp_path / "q.jsonl", ""), corpus=corpus)


@pytest.mark.parametrize("fractions", [(-0.1, 0.2), (0.6, 0.5)])
def test_bad_fractions(tmp_path: Path, corpus: str, fractions: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="their sum <= 1"):
        jsonl(
            questions=write(tmp_path / "q.jsonl", GOOD),
            corpus=corpus,
            dev_fraction=fractions[0],
            test_fraction=fractions[1],
        )


def test_an_exported_world_reads_back_as_it_was(tmp_path: Path) -> None:
    world = Almanac(num_companies=20, dev_companies=2, test_companies=5)
    paths = export(world, tmp_path / "a world")
    data = jsonl(**{key: str(path) for key, path in paths.items()})  # type: ignore[arg-type]
    assert data.corpora() == world.corpora()
    for name in ("train", "dev", "test"):
        there, here = data.split(name), world.split(name)
        assert [(t.id, t.messages, t.references) for t in there] == [(t.id, t.messages, t.references) for t in here]
        assert [t.metadata["kind"] for t in there] == [t.metadata["kind"] for t in here]
    assert Counter(p.name for p in (tmp_path / "a world").iterdir()) == {
        "questions.jsonl": 1,
        "corpus.jsonl": 1,
        "web.jsonl": 1,
    }


def test_an_export_says_the_split_that_a_task_is_in(tmp_path: Path) -> None:
    row = {"id": "a", "question": "Where?", "answers": "here", "split": "validation", "topic": "towns"}
    export(jsonl(questions=write(tmp_path / "q.jsonl", row)), tmp_path)
    assert json.loads((tmp_path / "questions.jsonl").read_text()) == row | {"answers": ["here"], "split": "dev"}
