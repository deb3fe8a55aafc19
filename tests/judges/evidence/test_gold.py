"""Gold support: what proves an answer, and what was shown of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentgrpo.core.errors import DataError
from agentgrpo.judges.base import EvidenceGrade, QueryResults
from agentgrpo.judges.evidence.gold import GoldEvidence, was_supported
from tests.builders import episode, passage, task

TWO_HOPS = task(supporting=["a", "b"])
A, B, C = (passage(id, f"text {id}") for id in "abc")


@pytest.mark.parametrize(
    ("seen", "score", "sufficient"), [([], 0.0, False), ([C], 0.0, False), ([A, C], 0.5, False), ([B, C, A], 1.0, True)]
)
def test_share_of_the_supporting_passages(seen: Sequence[object], score: float, sufficient: bool) -> None:
    results = [QueryResults(query="x", passages=(A, C)), QueryResults(query="y", passages=(C,))]
    graded = GoldEvidence().judge_round(TWO_HOPS, results, seen)  # type: ignore[arg-type]
    assert graded == EvidenceGrade(sufficient=sufficient, score=score, num_sufficient_queries=1)


def test_a_task_that_names_none_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"task t0 does not say which passages prove its answer .* use evidence=lexical"
    ):
        GoldEvidence().judge_round(task(), [], [A])


def test_support_of_an_episode() -> None:
    assert was_supported(episode(TWO_HOPS, retrieved="bca")) is True
    assert was_supported(episode(TWO_HOPS, retrieved="ac")) is False
    assert was_supported(episode(TWO_HOPS)) is None
    assert was_supported(episode(task(), retrieved="a")) is None
    assert was_supported(episode(task(supporting="ab"), retrieved="ab")) is None  # a text is no list of ids
