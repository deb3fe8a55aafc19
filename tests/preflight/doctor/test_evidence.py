"""What the doctor says of the evidence judge."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentgrpo.preflight.doctor.evidence import LEAST, look_at_evidence
from agentgrpo.preflight.doctor.finding import CheckNotes, Skipped
from tests.builders import episode, task

QUESTION = task(supporting=["a"])


def looked(*scores: tuple[str, float]) -> CheckNotes:
    """(id of what was shown, score) of episodes; "a" supports."""
    found = CheckNotes()
    episodes = [
        episode(QUESTION, metrics={"evidence_score_final": s, "final_evidence_sufficient": s > 0.5}, retrieved=shown)
        for shown, s in scores
    ]
    case: Any = SimpleNamespace(episodes=episodes)
    look_at_evidence(case, found)
    return found


def test_a_judge_that_reads_is_only_measured() -> None:
    found = looked(*[("a", 0.9)] * LEAST, *[("b", 0.2)] * LEAST)
    assert not found.findings
    assert found.facts == {
        "auc": 1.0,
        "supported": LEAST,
        "sufficient_where_supported": 1.0,
        "unsupported": LEAST,
        "sufficient_where_unsupported": 0.0,
    }


def test_a_judge_that_does_not_read_is_noted_unless_there_is_too_little_to_say_so() -> None:
    coin = [("a", 0.9)] * LEAST + [("b", 0.9)] * LEAST
    [finding] = looked(*coin).findings
    assert (finding.level, finding.key) == ("note", "environment.evidence")
    assert finding.what == "the evidence judge tells found from not found with an AUC of 0.50"
    assert not looked(*coin[1:]).findings
    assert not looked(*coin[:LEAST]).findings


def test_without_gold_support_there_is_nothing_to_measure_by() -> None:
    case: Any = SimpleNamespace(episodes=[episode(task(), retrieved="a")])
    with pytest.raises(Skipped, match="no task says which passages prove its answer"):
        look_at_evidence(case, CheckNotes())
