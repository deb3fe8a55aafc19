"""Each published format: known by its looks, read to whole values, and what is wrong with a row said with its place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.tasks.malformed import Malformed
from agentgrpo.tasks.questions.formats import FORMATS, QuestionEntry
from agentgrpo.tasks.questions.intake import Opened, UsedIds, opened, parts_of
from tests.tasks.questions.samples import (
    GSM,
    HOTPOT,
    MUSIQUE,
    ROWS,
    SAMPLES,
    SQUAD,
    TRIVIA,
    WIKI2,
    lines,
    search_r1,
    table,
)


def open_one(path: Path | str, format: str = "auto", **keys: str) -> Opened:
    [part] = parts_of(str(path))
    return opened(part, format, keys)


def entries_of(file: Opened) -> list[QuestionEntry]:
    """Raises DataError for rows that cannot be read."""
    malformed = Malformed()
    found = list(file.entries(malformed, UsedIds()))
    malformed.refuse()
    return found


def asked(file: Opened) -> list[tuple[str, str, tuple[str, ...], dict[str, Any]]]:
    return [(e.id, e.question, e.answers, dict(e.metadata)) for e in entries_of(file)]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_there_is_a_sample_of_every_format() -> None:
    assert SAMPLES.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_published_file_is_known_and_read(tmp_path: Path, name: str) -> None:
    sample = SAMPLES[name]
    file = open_one(write(tmp_path, sample.file, sample.text))
    assert (file.name, asked(file)) == (name, sample.asked)
    assert asked(open_one(tmp_path / sample.file, name)) == sample.asked


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("search_r1", ROWS),
        ("nq", [{"question": "when was orm founded", "answer": ["1200", "in 1200"]}]),
        ("gsm8k", [GSM]),
        (
            "hotpotqa",
            [
                HOTPOT
                | {
                    "id": HOTPOT["_id"],
                    "supporting_facts": {"title": ["Orm", "Velm"], "sent_id": [0, 1]},
                    "context": {"title": ["Orm"], "sentences": [["Orm is old."]]},
                }
            ],
        ),
        ("musique", [MUSIQUE]),
        (
            "trivia_qa",
            [
                {
                    "question": TRIVIA["Question"],
                    "question_id": "tc_33",
                    "answer": {
                        "aliases": ["Sunset Blvd", "Sunset Boulevard", "Sunset Blvd."],
                        "normalized_aliases": ["sunset boulevard", "sunset blvd", "west sunset"],
                        "value": "Sunset Boulevard",
                    },
                    "QuestionSource": "http://example.org/",
                }
            ],
        ),
        ("trivia_qa", [TRIVIA]),
        (
            "squad",
            [
                {
                    "id": "56d",
                    "context": "Orm is old.",
                    "question": "How is Orm?",
                    "answers": {"text": ["old"]},
                    "title": "Orm",
                    "is_impossible": False,
                }
            ],
        ),
        ("bamboogle", [{"Question": "Who was president when Orm, the town, fell?", "Answer": "Mara Lind"}]),
    ],
)
def test_the_same_rows_as_parquet(tmp_path: Path, name: str, rows: list[dict[str, Any]]) -> None:
    file = open_one(table(tmp_path / "x.parquet", *rows))
    assert (file.name, asked(file)) == (name, SAMPLES[name].asked[: len(rows)])


def test_large_columns_that_nothing_needs_are_not_read(tmp_path: Path) -> None:
    rows = [search_r1(0, "Mara", metadata={"level": "easy", "context": [["Orm", "long"]]})]
    file = open_one(table(tmp_path / "x.parquet", *rows))
    [read] = file.part.records(file.columns.unread, Malformed())
    assert read.object() == rows[0] | {"metadata": {"level": "easy"}}


def test_a_question_that_only_the_prompt_has(tmp_path: Path) -> None:
    row = search_r1(3, "Mara")
    del row["question"], row["golden_answers"], row["id"]
    file = open_one(table(tmp_path / "x.parquet", row))
    rest = {key: row[key] for key in ("ability", "reward_model", "extra_info")}
    assert asked(file) == [("nq-3", "who founded town 3?", ("Mara",), rest)]
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Who founded Orm?"}]
    as_text = row | {"prompt": chat, "reward_model": {"ground_truth": "72"}}
    file = open_one(write(tmp_path, "x.jsonl", lines(as_text)))
    [entry] = entries_of(file)
    assert (entry.id, entry.question, entry.answers) == ("nq-3", "Who founded Orm?", ("72",))
    assert [(m.role, m.content) for m in entry.messages] == [tuple(m.values()) for m in chat]


def test_what_the_rows_say_of_their_split(tmp_path: Path) -> None:
    rows = [search_r1(i, "x", split=split) for i, split in enumerate(("train", "test", "dev", "validation"))]
    file = open_one(write(tmp_path, "x.jsonl", lines(*rows)))
    assert [(e.split, e.data_source) for e in entries_of(file)] == [
        (None, "nq"),
        ("test", "nq"),
        ("dev", "nq"),
        ("dev", "nq"),
    ]


def test_test_sets_come_without_answers(tmp_path: Path) -> None:
    hidden = [
        ("hotpotqa", {k: v for k, v in HOTPOT.items() if k in ("_id", "question", "context")}),
        ("2wiki", WIKI2 | {"answer": "", "supporting_facts": [], "evidences": []}),
        ("musique", {k: v for k, v in MUSIQUE.items() if not k.startswith("answer")}),
        ("trivia_qa", {"Data": [{k: v for k, v in TRIVIA.items() if k != "Answer"}]}),
        ("trivia_qa", {"question": "q?", "question_id": "1", "answer": {"value": "<unk>", "aliases": []}}),
        ("search_r1", search_r1(0)),
    ]
    for name, row in hidden:
        file = open_one(write(tmp_path, "x.json", json.dumps(row)))
        assert (file.name, [e.answers for e in entries_of(file)]) == (name, [()])


def test_own_keys(tmp_path: Path) -> None:
    path = write(tmp_path, "x.csv", "qid;query;golden;topic\n1;Where?;here;places\n")
    assert asked(open_one(path, id="qid", question="query", answers="golden")) == [
        ("1", "Where?", ("here",), {"topic": "places"})
    ]
    with pytest.raises(
        DataError, match=r"x\.csv, line 2: 'idd' is missing or empty; the row has qid, query, golden, topic"
    ):
        entries_of(open_one(path, id="idd", question="query", answers="golden"))
    with pytest.raises(
        ConfigError, match=r"keys\.anwers; id, question, answers can be renamed\. Did you mean 'answers"
    ):
        open_one(path, anwers="golden")


BAD: list[tuple[str, str, Any, str]] = [
    ("search_r1", "x.jsonl", search_r1(0, "") | {}, "line 1: 'golden_answers' is ['']; a text that is not empty"),
    ("search_r1", "x.jsonl", search_r1(0, "a") | {"golden_answers": {"a": 1}}, "line 1: 'golden_answers' is {'a': 1}"),
    (
        "search_r1",
        "x.jsonl",
        search_r1(0, "a") | {"question": None, "prompt": []},
        "line 1.prompt: a list of messages whose last",
    ),
    ("hotpotqa", "x.json", [HOTPOT, HOTPOT | {"question": " "}], "[1].question: ' '; a text that is not empty is"),
    ("hotpotqa", "x.json", [HOTPOT | {"answer": ["a", 1.5, None]}], "[0]: 'answer' is ['a', 1.5, None]; a text"),
    ("hotpotqa", "x.json", [HOTPOT | {"supporting_facts": [["Orm"]]}], "[0].supporting_facts: a list of 1; pairs of"),
    ("2wiki", "x.json", [WIKI2 | {"type": 3}], "[0].type: 3; a text that is not empty is needed"),
    ("musique", "x.jsonl", MUSIQUE | {"answer_aliases": [" "]}, "line 1: 'answer_aliases' is [' ']; a text"),
    ("musique", "x.jsonl", MUSIQUE | {"answerable": "no"}, "line 1.answerable: 'no'; true or false is needed"),
    ("trivia_qa", "x.json", {"Data": [TRIVIA | {"Answer": "x"}]}, "Data[0].Answer: 'x' stands where an object is"),
    ("trivia_qa", "x.json", {"Data": [TRIVIA | {"Question": None}]}, "Data[0].Question: missing; a text"),
    ("nq", "x.jsonl", {"question": "q", "answer": [[]]}, "line 1: 'answer' is [[]]; a text that is not empty"),
    ("popqa", "x.tsv", "question\tpossible_answers\nq?\tpolitician\n", "line 2.possible_answers: 'politician'; a JSON"),
    ("popqa", "x.tsv", "question\tpossible_answers\nq?\t{}\n", "line 2: 'possible_answers' is {}; a text"),
    (
        "popqa",
        "x.tsv",
        'question\tpossible_answers\ts_pop\nq?\t["a"]\tmany\n',
        "line 2.s_pop: 'many'; a whole number is needed",
    ),
    ("popqa", "x.tsv", 'question\tpossible_answers\nq?\t["a"]\textra\n', "line 2: not 2 columns as the header has"),
    ("bamboogle", "x.csv", "Question,Answer\nWho?,\n", "line 2: 'Answer' is ''; a text that is not empty is needed"),
    (
        "gsm8k",
        "x.jsonl",
        GSM | {"answer": "It is 72."},
        "line 1: 'answer' is 'It is 72.'; a solution that ends in '####",
    ),
    ("gsm8k", "x.jsonl", GSM | {"answer": "so\n#### "}, "line 1: 'answer' is 'so\\n#### '; a solution that ends in"),
    (
        "squad",
        "x.json",
        {"data": [{"title": "t", "paragraphs": [{"qas": [{"question": "q", "answers": [{"text": ""}]}]}]}]},
        "data[0].paragraphs[0].qas[0].answers[0].text: ''; a text",
    ),
    ("squad", "x.jsonl", {"question": "q", "answers": {"text": "old"}}, "line 1.answers.text: 'old'; a list is needed"),
    ("plain", "x.jsonl", {"question": "q", "answers": float("nan")}, "line 1: 'answers' is nan; a text that is not"),
    ("plain", "x.jsonl", {"question": "q", "answers": [1, float("inf")]}, "line 1: 'answers' is [1, inf]; a text that"),
    ("plain", "x.jsonl", {"question": "q", "answers": {"a": 1}}, "line 1: 'answers' is {'a': 1}; a text"),
    ("plain", "x.jsonl", {"question": "q", "answer": "a", "split": "tset"}, "line 1: 'split' is 'tset'; train, dev"),
    (
        "plain",
        "x.jsonl",
        {"question": "q", "answer": "a", "files": [1]},
        "line 1: metadata.files is a list; {name: text}",
    ),
    (
        "plain",
        "x.json",
        '[{"question": "q", "answer": "a"},\n {"question": ]',
        "line 2, column 15: not valid JSON (Expecting value)",
    ),
    (
        "plain",
        "x.json",
        '[{"question": "q", "answer": "a"} {}]',
        "line 1, column 35: not valid JSON (a comma or the end",
    ),
    ("plain", "x.json", '[{"question": "q", "answer": "a"}', "line 1, column 34: not valid JSON (a comma or the end"),
    ("plain", "x.json", '[{"question": "\\ud800", "answer": "a"}]', "half a surrogate pair, which is no text"),
    ("plain", "x.json", "[3]", "[0]: 3 stands where an object is needed"),
    ("plain", "x.json", "[]", "'FILE' has no questions; give a file of at least one record"),
    ("plain", "x.jsonl", "\n", "'FILE' has no questions; give a file of at least one record"),
    ("plain", "x.jsonl", '{"question": "q", "answer": "a"}\nnonsense', "line 2: not valid JSON"),
    ("plain", "x.parquet", "PAR1 but not really", "not readable as parquet"),
]


@pytest.mark.parametrize(("format", "file", "content", "reason"), BAD, ids=[f"{b[0]}: {b[3]}" for b in BAD])
def test_a_malformed_row_is_named(tmp_path: Path, format: str, file: str, content: Any, reason: str) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    path = write(tmp_path, file, text)
    with pytest.raises(DataError) as error:
        entries_of(open_one(path, format))
    assert reason in str(error.value).replace(f"'{path}'", "'FILE'")
    assert str(path) in str(error.value)


def test_what_is_of_no_format(tmp_path: Path) -> None:
    path = write(tmp_path, "x.jsonl", lines({"Qestion": "q", "y": 1}))
    message = (
        rf"{re.escape(str(path))}, line 1: keys Qestion, y are of no known format \(search_r1, .*, openrlhf\); name "
        r"the key of the question: task\.question_key=KEY .*\. Did you mean 'Qestion'\?"
    )
    with pytest.raises(DataError, match=message):
        open_one(path)
    with pytest.raises(DataError, match=r"data check: '.*no\.jsonl' is not a file; give the path of one"):
        parts_of(str(tmp_path / "no.jsonl"), what="data check")


def test_squad_is_read_question_by_question(tmp_path: Path) -> None:
    article = SQUAD["data"][0]  # type: ignore[index]
    path = write(tmp_path, "x.json", json.dumps({"version": "1.1", "data": [article, article]}))
    assert [e.where.rpartition(", ")[2] for e in entries_of(open_one(path))] == [
        f"data[{i}].paragraphs[0].qas[{k}]" for i in range(2) for k in range(2)
    ]
