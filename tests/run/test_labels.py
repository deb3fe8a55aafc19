"""Answers with labels: what of a judge they show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.cli.main import main
from agentgrpo.core.errors import DataError, JudgeError
from agentgrpo.core.types import Task
from agentgrpo.judges.answers import Contains, ExactMatch
from agentgrpo.judges.base import Grade
from agentgrpo.judges.llm.judge import LLMJudge
from agentgrpo.run.judging import check_judge
from agentgrpo.run.labels import Label, calibrate, compare, pairs_of, read_labels
from tests.builders import task
from tests.judges.llm.models import Spoken, fields, honest, verdict

WHO = task("Who founded Velmor?", "Castin", id="t0")


def label(answer: str, grade: float, of: Task = WHO) -> Label:
    return Label(task=of, answer=answer, grade=grade)


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_file_of_labels(tmp_path: Path) -> None:
    path = written(
        tmp_path / "l.jsonl",
        {"question": "Who?", "references": ["Castin"], "answer": " Castin ", "label": 1},
        {"question": "Who?", "answer": "Orlin", "label": 0.25},
    )
    found = read_labels(path)
    assert [(x.task.question, x.task.references, x.answer, x.grade) for x in found] == [
        ("Who?", ("Castin",), "Castin", 1.0),
        ("Who?", (), "Orlin", 0.25),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"label": 2}, r"line 1: 'label' is 2; it must be a number from 0 \(wrong\) to 1 \(right\)"),
        ({"label": "yes"}, "'label' is 'yes'"),
        ({"label": float("nan")}, "'label' is nan"),
        ({"answer": ""}, "'answer' is"),
        ({"references": "Castin"}, "'references' is 'Castin'; it must be a list of texts, or left out"),
    ],
)
def test_a_line_that_is_no_label(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = written(tmp_path / "l.jsonl", {"question": "Who?", "answer": "Castin", "label": 1} | row)
    with pytest.raises(DataError, match=message):
        read_labels(path)
    with pytest.raises(DataError, match="has no lines"):
        read_labels(written(path))


def test_accuracy_and_agreement_by_hand() -> None:
    """Ten answers: 4 right of which 3 are graded so, 6 wrong of which 4 are: (3 + 4) / 10. By chance the two agree on
    .4 of .5 and on .6 of .5, which is .5: (.7 - .5) / .5."""
    grades = [(1.0, 1.0)] * 3 + [(1.0, 0.0)] + [(0.0, 0.0)] * 4 + [(0.0, 1.0)] * 2
    labels = [label("x", wanted) for wanted, _ in grades]
    found = compare([(of, given) for of, (_, given) in zip(labels, grades, strict=True)], labels)
    assert (found.answers, found.refused, found.accuracy, found.commonest) == (10, 0, 0.7, 0.6)
    assert found.agreement == pytest.approx(0.4)
    assert found.length_bias is None
    assert found.findings() == ["labels: it is right about 0.70 of the answers; 0.8 is needed"]


def test_a_judge_that_says_one_thing_agrees_by_chance() -> None:
    labels = [label("x", float(i % 2)) for i in range(10)]
    found = compare([(of, 1.0) for of in labels], labels)
    assert found.agreement == 0.0
    assert "labels: it agrees with them no more than by chance" in found.findings()
    alike = compare([(of, 1.0) for of in labels if of.grade], labels)
    assert (alike.accuracy, alike.agreement, alike.refused) == (1.0, None, 5)


async def test_a_bias_by_length_is_beyond_the_labels() -> None:
    class LikesLength:
        async def grade(self, task: Task, answers: list[str]) -> list[Grade]:
            return [Grade(score=0.9 if len(a.split()) > 2 else 0.6) for a in answers]

    short, long = label("Castin", 1.0), label("it was Castin of Velmor", 1.0)
    found = await calibrate(LikesLength(), [short, long] * 10)
    assert found.length_bias == pytest.approx(0.3)
    assert found.findings() == ["labels: it favours long answers by 0.30"]
    assert (await calibrate(LikesLength(), [short, long])).findings() == []


async def test_refusals_are_counted_and_a_dead_judge_is_an_error() -> None:
    refusing = LLMJudge(completer=Spoken(lambda system, user: "hm"), verdict_retries=0)
    found = await calibrate(refusing, [label("Castin", 1.0), label("Orlin", 0.0)])
    assert (found.answers, found.refused, found.accuracy) == (0, 2, None)
    assert found.findings() == ["labels: it gives no grade to 2 of 2 answers"]
    assert (await calibrate(ExactMatch(), [label("x", 1.0, task("q", ":"))])).refused == 1

    class Dead:
        async def grade(self, task: Task, answers: list[str]) -> list[Grade]:
            raise JudgeError("nobody there", kind="transport")

    with pytest.raises(JudgeError, match="nobody there"):
        await calibrate(Dead(), [label("Castin", 1.0)])


def test_pairs_are_of_one_question() -> None:
    other = task("Where is Velmor?", "Newport", id="t1")
    labels = [label("Orlin", 0.0), label("Castin", 1.0), label("Vel", 0.1), label("Newport", 1.0, other)]
    assert pairs_of(labels) == [(WHO, "Castin", "Orlin")]


async def test_the_check_has_them_and_shows_labelled_pairs_in_both_orders() -> None:
    def prefers_the_first(system: str, user: str) -> str:
        return verdict(system, 1.0, 0.0) if len(fields(system)) == 2 else honest(system, user)

    labels = [label("Castin", 1.0), label("Orlin", 0.0)]
    found = await check_judge(LLMJudge(completer=Spoken(prefers_the_first)), [WHO], labels=labels, count=5)
    assert [line for line in found.lines if line.startswith("labels")] == [
        "labels: accuracy 1.00 over 2 answers, and 0 refused",
        "labels: accuracy 0.50 of always saying the commonest label",
        "labels: agreement 1.00 (Cohen's kappa); being long is worth none",
    ]
    assert found.lines[-1] == "order: 0.00 of 1 pairs have one winner in both orders; first is worth +1.00"
    assert json.loads(found.json())["labels"]["accuracy"] == 1.0
    plain = await check_judge(Contains(), [WHO], count=5)
    assert "labels" not in json.loads(plain.json())


@pytest.mark.slow
def test_the_command_takes_a_file_for_a_judge_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "numerics", "--labels", "l.jsonl"]) == 2
    assert "labels are for a judge: agentgrpo check judge --labels FILE" in capsys.readouterr().err
    right = {"question": "Who?", "references": ["Castin"], "answer": "Castin", "label": 1}
    path = written(tmp_path / "l.jsonl", right, right | {"answer": "Orlin", "label": 0})
    asked = ["check", "judge", "--labels", str(path), "judge=exact_match"]
    code = main([*asked, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["labels"]["accuracy"], found["labels"]["agreement"]) == (0, 1.0, 1.0)
    assert main(["check", "judge", "--labels", str(tmp_path / "none.jsonl"), "judge=exact_match"]) == 2
    assert "--labels: '" in capsys.readouterr().err
