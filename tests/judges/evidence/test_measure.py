"""AUC by hand, and of which episodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentgrpo.core.types import Failure
from agentgrpo.judges.evidence.measure import JudgedEvidence, auc, evidence_figures, judged_evidence
from tests.builders import episode, task


def rows(supported: list[float], unsupported: list[float]) -> list[JudgedEvidence]:
    both = [(score, True) for score in supported] + [(score, False) for score in unsupported]
    return [JudgedEvidence(score, score > 0.5, kind) for score, kind in both]


@pytest.mark.parametrize(
    ("supported", "unsupported", "area"),
    [
        ([0.9, 0.8], [0.1, 0.7], 1.0),
        ([0.1], [0.9], 0.0),
        ([0.5, 0.5], [0.5], 0.5),
        # (0.9 beats both) + (0.4 beats one, ties none): 3 of 4
        ([0.9, 0.4], [0.3, 0.6], 0.75),
        # one win, one tie of 2 pairs
        ([0.9, 0.4], [0.4], 0.75),
        ([0.9], [], None),
        ([], [0.9], None),
    ],
)
def test_auc(supported: list[float], unsupported: list[float], area: float | None) -> None:
    assert auc(rows(supported, unsupported)) == area


def test_figures() -> None:
    assert evidence_figures([]) == {}
    assert evidence_figures(rows([0.9, 0.4], [0.3])) == {
        "auc": 1.0,
        "supported": 2,
        "sufficient_where_supported": 0.5,
        "unsupported": 1,
        "sufficient_where_unsupported": 0.0,
    }
    assert evidence_figures(rows([0.9], []))["sufficient_where_unsupported"] is None


def test_of_episodes_that_were_shown_something_and_have_gold_support() -> None:
    judged = {"evidence_score_final": 0.25, "final_evidence_sufficient": 1.0}
    found = episode(task(supporting=["a"]), metrics=judged, retrieved="ba")
    missed = replace(found, retrieved_ids=("b",))
    others = [
        replace(found, retrieved_ids=()),
        replace(found, task=task()),
        replace(found, metrics={}),  # another environment's
        replace(found, failure=Failure(kind="timeout", stage="tools", message="")),
    ]
    assert judged_evidence([found, missed, *others]) == [(0.25, True, True), (0.25, True, False)]
