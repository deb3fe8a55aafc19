"""Every judge YAML names its judge and its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from agentgrpo.judges import AnswerJudge, Composite, Contains, ExactMatch, GoldAgreement, TokenF1
from tests.builders import task

JUDGES: dict[str, type[AnswerJudge]] = {
    "exact_match": ExactMatch,
    "token_f1": TokenF1,
    "contains": Contains,
    "gold_agreement": GoldAgreement,
    "composite": Composite,
}
CONFIGS = Path(__file__).parents[2] / "configs" / "judge"


def build(config: dict[str, Any]) -> AnswerJudge:
    """A node, parts first: a composite's `judge` is a node of its own."""
    settings = {k: v for k, v in config.items() if k != "name"}
    if "parts" in settings:
        settings["parts"] = {n: (build(part["judge"]), part["weight"]) for n, part in settings["parts"].items()}
    return JUDGES[config["name"]](**settings)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exact_match", [1.0, 0.0]),
        ("token_f1", [1.0, 2 / 3]),
        ("contains", [1.0, 0.7]),
        ("gold_agreement", [1.0, 0.7]),
        ("composite", [1.0, 0.5 * 2 / 3]),
    ],
)
async def test_a_yaml_builds_its_judge(name: str, expected: list[float]) -> None:
    judge = build(yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")))
    assert [v.score for v in await judge.grade(task(), ["Castin", "Castin Vel"])] == pytest.approx(expected)
