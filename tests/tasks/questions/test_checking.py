"""agentgrpo data check: what it finds, what it only mentions, what it exits with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.cli.main import main
from agentgrpo.core.errors import DataError, MalformedRows
from agentgrpo.tasks.jsonl import jsonl
from agentgrpo.tasks.questions.checking import DataReport, FileReport, check
from tests.tasks.questions.samples import CUT, SAMPLES, lines, search_r1, table


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(r + "\n" if isinstance(r, str) else lines(r) for r in rows), encoding="utf-8")
    return str(path)


def q(text: str, answers: Any = "Mara") -> dict[str, Any]:
    return {"question": text, "answers": answers}


def test_a_good_file(tmp_path: Path) -> None:
    path = table(
        tmp_path / "x.parquet",
        search_r1(1, "Mara Lind", "Mara"),
        search_r1(22, "Jon", source="hotpotqa", split="test"),
        search_r1(1, "mara"),
    )
    report = check([path])
    assert report == DataReport(
        files=[
            FileReport(
                name=path,
                format="search_r1",
                questions=3,
                with_answer=3,
                sources={"nq": 2, "hotpotqa": 1},
                splits={"test": 1},
                notes=[f"{path} {CUT}"],
                question_chars=(19, 19.0, 20),
                answer_chars=(3, 4.0, 4),
                asked_again=1,
            )
        ],
        findings=[],
        notes=[],
    )
    assert list(report.lines()) == [
        f"{path}: search_r1, 3 questions, 3 with an answer",
        "  from hotpotqa 1, nq 2",
        "  for test 1; 2 for train, or dealt by a hash",
        "  characters of a question: 19 to 20, median 19",
        "  characters of an answer: 3 to 4, median 4",
        "  note: 1 questions are asked again",
        f"  note: {report.files[0].notes[0]}",
        "no problem was found",
    ]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_can_be_checked(tmp_path: Path, name: str) -> None:
    sample = SAMPLES[name]
    (tmp_path / sample.file).write_text(sample.text, encoding="utf-8")
    report = check([str(tmp_path / sample.file)])
    assert ([f.format for f in report.files], report.hurts) == ([name], False)
    assert report.files[0].questions == len(sample.asked)
    assert report.files[0].with_answer == sum(bool(answers) for _, _, answers, _ in sample.asked)


def test_questions_without_an_answer_beside_others_are_counted(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("question,answer\nWho?,Ann\nWhat?,\nWhy?,Bob\n", encoding="utf-8")
    [note] = [n for n in check([str(tmp_path / "q.csv")]).files[0].notes if "no answer" in n]
    assert note.startswith("1 questions have no answer, so no attempt at them is right")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("q.json", '[{"question": {"text": "Who?"}, "answers": "Ann"}]', "a key within an object cannot be named"),
        ("q.psv", "question|answer\nWho?|Ann\n", ".psv is read so, and .csv, .tsv, .json, .parquet are known"),
        ("q.csv", "question,answer,notes\nWho?,Ann,x\n,Bob,x\n", "'question' is missing or empty; the row has answer"),
    ],
)
def test_a_row_that_cannot_be_read_says_what_can(tmp_path: Path, name: str, text: str, problem: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    try:
        told = str(check([str(tmp_path / name)], format="plain").files[0].findings)
    except DataError as e:
        told = str(e)
    assert problem in told


FINDINGS: list[tuple[list[object], str]] = [
    (
        [q("a?"), q("b?", []), q("c?"), q("", "x")],
        (
            "2 malformed rows:\n"
            "  FILE, line 2: 'answers' is []; a text that is not empty is needed, or a list of such\n"
            "  FILE, line 4: 'question' is ''; it must be a non-empty string"
        ),
    ),
    (
        [q("a?"), "{oops", q("b?")],
        (
            "1 malformed row:\n"
            "  FILE, line 2: not valid JSON (Expecting property name enclosed in double quotes: line 1 "
            "column 2 (char 1)); write one object per line"
        ),
    ),
    (
        [q("a?", '["x", "y"]'), q("b?", "['x']"), q("c?", '{"a": 1}'), q("d?", "array(['x'], dtype=object)")],
        (
            '4 answers that look like data, not like an answer: FILE, line 1: \'["x", "y"]\'; FILE, line 2: "[\'x\']"; '
            "FILE, line 3: '{\"a\": 1}', ..."
        ),
    ),
    (
        [q("a?", "None"), q("b?", ["x", "NaN"]), q("c?", "so\n#### 72")],
        (
            "3 answers that look like data, not like an answer: FILE, line 1: 'None'; FILE, line 2: 'NaN'; "
            "FILE, line 3: 'so\\n#### 72'"
        ),
    ),
    ([q("a?", ["x", "?!"])], "1 answers with neither letter nor digit: FILE, line 1: '?!'"),
    ([q("a?", "+")], "1 answers with neither letter nor digit: FILE, line 1: '+'"),
    ([q("Who?"), q("who", "Jon")], "1 questions asked again with other answers: FILE, line 2: 'who'"),
]


@pytest.mark.parametrize(("rows", "finding"), FINDINGS, ids=[finding for _, finding in FINDINGS])
def test_what_would_hurt(tmp_path: Path, rows: list[object], finding: str) -> None:
    path = write(tmp_path / "x.jsonl", *rows)
    report = check([path])
    assert report.hurts
    assert [text.replace(path, "FILE") for text in report.files[0].findings] == [finding]


@pytest.mark.parametrize("answer", ["[1]x", "(sic)", "{x", "(Mara)", "[the town]", "Nona", "#1", "0", "€5"])
def test_answers_that_only_look_odd(tmp_path: Path, answer: str) -> None:
    assert not check([write(tmp_path / "x.jsonl", q("a?", answer))]).hurts


def test_a_test_set_without_answers(tmp_path: Path) -> None:
    report = check([table(tmp_path / "x.parquet", search_r1(1), search_r1(2))])
    [finding] = report.files[0].findings
    assert finding == (
        "no question has an answer; say what the answers are called (--answers-key KEY), unless an environment of "
        "your own says what an attempt is worth"
    )


def test_what_is_in_two_files(tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", q("Who founded Orm?"), q("Who founded Velm?"), q("Who fell?"))
    two = write(tmp_path / "two.jsonl", q("who founded orm"), q("Founded Velm who?"), q("Who rose?"))
    report = check([one, two])
    assert report.findings == [f"1 questions are in both {one} and {two}: 'who founded orm'"]
    assert report.notes == [f"1 questions of {one} are nearly the same in {two}: the same words, in another order"]
    assert list(report.lines())[-2:] == [f"note: {report.notes[0]}", f"finding: {report.findings[0]}"]


def test_what_is_in_two_splits_of_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", q("Who?") | {"split": "train"}, q("who") | {"split": "test"}, q("How?"))
    assert check([path]).findings == [f"1 questions are in both {path} (train) and {path} (test): 'who'"]


def test_what_a_run_would_refuse_is_found(tmp_path: Path) -> None:
    """One loader reads for both: the same rows, the same words."""
    path = write(tmp_path / "x.jsonl", q("a?") | {"id": 1}, q("b?") | {"id": "1"}, "{oops", q("c?", []))
    corpus = write(tmp_path / "c.jsonl", {"_id": 1, "text": "x"}, {"_id": 1, "text": "y"}, {"_id": 2, "text": ""})
    report = check([path], corpus=corpus, corpus_keys={"id": "_id"})
    assert (report.files[0].questions, report.corpus and report.corpus.passages) == (1, 1)
    with pytest.raises(MalformedRows) as refusal:
        jsonl(questions=path, corpus=corpus, corpus_keys={"id": "_id"})
    assert report.corpus is not None
    found = [*report.files[0].findings, *report.corpus.findings]
    rows = [row for text in found for row in text.splitlines()[1:]]
    assert str(refusal.value).splitlines() == ["5 malformed rows:", *rows]


@pytest.mark.parametrize(
    "row",
    [
        q("who " * 2_000_000),
        q("Who?", "x" * 5_000_000),
        q("Who?", ["x"] * 10 + ["y " * 2_500_000]),
        {"prompt": [{"role": "system", "content": "be " * 2_000_000}, {"role": "user", "content": "Who?"}]},
        {"_id": "9", "question": "who " * 2_000_000, "answer": "Mara", "supporting_facts": []},
    ],
)
def test_a_row_that_no_context_holds_is_named_and_not_compared(tmp_path: Path, row: dict[str, Any]) -> None:
    path = write(tmp_path / "x.jsonl", q("a?"), q("b?"), row)
    [finding] = check([path]).files[0].findings
    assert "1 malformed row:" in finding
    assert "at most 4194304 are allowed: cut them, or take the row out" in finding
    assert len(finding) < 1000
    with pytest.raises(MalformedRows, match="no model's context holds them"):
        jsonl(questions=path)


def test_the_command_with_columns_of_other_names_and_a_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "q.csv", "n,query,gold", "1,Where?,here", "2,How?,so")
    corpus = write(tmp_path / "c.csv", "_id,body", "1,Bern", "2,A town")
    words = ["--question-key", "query", "--answers-key", "gold", "--id-key", "n", "--corpus", corpus]
    assert main(["data", "check", path, *words, "--corpus-keys", "id=_id,text=body"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{path}: plain, 2 questions, 2 with an answer"
    assert said[3:5] == [f"{corpus}: 2 passages", "  characters of a passage: 4 to 6, median 5"]
    assert main(["data", "check", path, *words, "--corpus-keys", "id"]) == 2
    assert capsys.readouterr().err.startswith("agentgrpo: --corpus-keys id; NAME=KEY is needed")
    assert main(["data", "check", path]) == 2
    assert "name the key of the question: task.question_key=KEY (data check: --" in capsys.readouterr().err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path / "good.jsonl", q("a?"))
    assert main(["data", "check", good]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no problem was found"
    assert main(["data", "check", good, write(tmp_path / "again.jsonl", q("A")), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["hurts"], [f["questions"] for f in said["files"]]) == (True, [1, 1])
    assert (
        main(["data", "check", "--format", "nq", write(tmp_path / "nq.jsonl", {"question": "q", "answer": "a"})]) == 0
    )
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'nq.jsonl'}: nq, 1 questions")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "data needs WHAT: agentgrpo data WHAT ..."),
        (["check"], "data needs FILES: agentgrpo data check FILES ..."),
        (["chek", "x"], "data chek; there is agentgrpo data check FILE.... Did you mean 'check'?"),
        (["check", "x.jsonl"], "data check: 'x.jsonl' is not a file; give the path of one, or a data set as"),
        (["check", "x", "--format", "hotpot"], "--format hotpot; auto, search_r1, "),
        (["check", "x", "-m"], "data has no settings, only --format and --subset and --question-key and"),
    ],
)
def test_what_it_cannot_do(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", *words]) == 2
    assert capsys.readouterr().err.startswith(f"agentgrpo: {message}")
