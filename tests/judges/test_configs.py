"""Every judge YAML names its judge and its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from agentgrpo.judges.answers import Choice, Contains, ExactMatch, GoldAgreement, Keywords, TokenF1
from agentgrpo.judges.base import AnswerJudge
from agentgrpo.judges.composed import Composite, Questions, Route
from agentgrpo.tasks.dialogue import Question, join, memory_task
from tests.builders import task

JUDGES: dict[str, type[AnswerJudge]] = {
    "exact_match": ExactMatch,
    "token_f1": TokenF1,
    "contains": Contains,
    "gold_agreement": GoldAgreement,
    "composite": Composite,
    "keywords": Keywords,
    "choice": Choice,
    "questions": Questions,
    "route": Route,
}
CONFIGS = Path(__file__).parents[2] / "configs" / "judge"


def build(config: dict[str, Any]) -> AnswerJudge:
    """A node, parts first: a composite's `judge` is a node of its own."""
    settings = {k: v for k, v in config.items() if k != "name"}
    if "parts" in settings:
        settings["parts"] = {n: (build(part["judge"]), part["weight"]) for n, part in settings["parts"].items()}
    if "judge" in settings:
        settings["judge"] = build(settings["judge"])
    if "routes" in settings:
        settings["routes"] = {n: build(route) for n, route in settings["routes"].items()}
    return JUDGES[config["name"]](**settings)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exact_match", [1.0, 0.0]),
        ("token_f1", [1.0, 2 / 3]),
        ("contains", [1.0, 0.7]),
        ("gold_agreement", [1.0, 0.7]),
        ("composite", [1.0, 0.5 * 2 / 3]),
        ("keywords", [1.0, 1.0]),
        ("choice", [1.0, 0.0]),
    ],
)
async def test_a_yaml_builds_its_judge(name: str, expected: list[float]) -> None:
    judge = build(yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")))
    assert [v.score for v in await judge.grade(task(), ["Castin", "Castin Vel"])] == pytest.approx(expected)


@pytest.mark.parametrize(("name", "metrics"), [("questions", ["", ""]), ("questions_by_metric", ["", "token_f1"])])
async def test_a_yaml_of_several_questions(name: str, metrics: list[str]) -> None:
    judge = build(yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")))
    asked = [Question(text="Who?", answers=("Castin",), metric=metric) for metric in metrics]
    of = memory_task("m", chunks=["..."], questions=asked, data_source="diary")
    found = [v.score for v in await judge.grade(of, [join(["Castin", "Castin"]), join(["Castin", "Castin Vel"])])]
    assert found == pytest.approx([1.0, (1.0 + (2 / 3 if any(metrics) else 0.0)) / 2])


def test_the_metrics_that_questions_may_name_are_the_judges_by_name() -> None:
    routes = yaml.safe_load((CONFIGS / "questions_by_metric.yaml").read_text(encoding="utf-8"))["judge"]["routes"]
    assert {name: node["name"] for name, node in routes.items() if name != "diary"} == {
        name: name for name in ("exact_match", "token_f1", "contains", "keywords", "choice")
    }
