"""The evidence heuristic on hand-computed rounds."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage
from agentgrpo.judges.base import EvidenceGrade, QueryResults
from agentgrpo.judges.evidence.heuristic import HeuristicEvidence
from tests.builders import passage, task

LONG = "Velmor was founded by Castin."


def query(*scores: float | None, text: str = LONG, subquestion: str | None = None) -> QueryResults:
    passages = tuple(passage(f"p{i}", text, score=s) for i, s in enumerate(scores))
    return QueryResults(query="founder Velmor", passages=passages, subquestion=subquestion)


def judge(*results: QueryResults, heuristic: HeuristicEvidence | None = None) -> EvidenceGrade:
    return (heuristic or HeuristicEvidence()).judge_round(task(), results, [])


@pytest.mark.parametrize(
    ("results", "sufficient", "score", "num_sufficient"),
    [
        ([], False, 0.0, 0),
        # no results: 0 of 1 queries, no top score
        ([query()], False, 0.0, 0),
        # 1 of 1 queries, top 3 -> 3/4: 0.5·1 + 0.5·0.75
        ([query(1.0, 3.0)], True, 0.875, 1),
        # one result < 2 in all, unless it was asked for a subquestion
        ([query(3.0)], False, 0.875, 1),
        ([query(3.0, subquestion="T1")], True, 0.875, 1),
        # 1 of 2 queries, mean over the one with a top score: 0.5·0.5 + 0.5·0.5
        ([query(1.0, 1.0), query()], False, 0.5, 1),
        # 2 of 2, tops 1 and 3: 0.5 + 0.5·(0.5 + 0.75)/2
        ([query(1.0), query(3.0)], True, 0.8125, 2),
        # without scores: sufficient by count and length; only the share counts
        ([query(None, None)], True, 0.5, 1),
        # a top score of 0 is not > 0
        ([query(0.0, 0.0)], True, 0.5, 1),
        # a top below the threshold 0 is not sufficient and has no strength
        ([query(-1.0, -2.0)], False, 0.0, 0),
        # unscored ones take no part: top 4, mean 4
        ([query(None, 4.0)], True, 0.9, 1),
        # too short
        ([query(1.0, 1.0, text="too short")], False, 0.25, 0),
    ],
)
def test_rounds(results: list[QueryResults], sufficient: bool, score: float, num_sufficient: int) -> None:
    found = judge(*results)
    assert (found.sufficient, found.num_sufficient_queries) == (sufficient, num_sufficient)
    assert found.score == pytest.approx(score, abs=1e-12)


def test_a_short_passage_does_not_spoil_a_long_one() -> None:
    both = QueryResults(query="q", passages=(passage("a", LONG, score=1.0), passage("b", "tiny", score=1.0)))
    assert judge(both) == EvidenceGrade(sufficient=True, score=0.75, num_sufficient_queries=1)


@pytest.mark.parametrize(
    ("heuristic", "result", "sufficient"),
    [
        (HeuristicEvidence(min_top_score=2.0), query(2.0, 0.0), True),
        (HeuristicEvidence(min_top_score=2.0), query(1.9, 1.9), False),
        (HeuristicEvidence(min_average_score=1.0), query(2.0, 0.0), True),
        (HeuristicEvidence(min_average_score=1.0), query(1.9, 0.0), False),
        # a positive threshold is not met by passages that have no score
        (HeuristicEvidence(min_top_score=0.1), query(None, None), False),
        (HeuristicEvidence(min_average_score=0.1), query(None, None), False),
        (HeuristicEvidence(min_top_score=-5.0, min_average_score=-5.0), query(-4.0, -6.0), True),
        (HeuristicEvidence(min_results_per_query=3), query(1.0, 1.0), False),
        (HeuristicEvidence(min_results_per_query=3, min_total_results=9), query(1.0, 1.0, 1.0, subquestion="T1"), True),
        (HeuristicEvidence(min_results_per_query=3, min_total_results=9), query(1.0, 1.0, 1.0), False),
        (HeuristicEvidence(min_content_length=len(LONG)), query(1.0, 1.0), True),
        (HeuristicEvidence(min_content_length=len(LONG) + 1), query(1.0, 1.0), False),
    ],
)
def test_thresholds(heuristic: HeuristicEvidence, result: QueryResults, sufficient: bool) -> None:
    assert judge(result, heuristic=heuristic).sufficient is sufficient


@pytest.mark.parametrize(
    "setting", [{"min_results_per_query": -1}, {"min_content_length": -1}, {"min_total_results": -1}]
)
def test_negative_counts_are_refused(setting: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(setting))} -1: 0 or more is allowed"):
        HeuristicEvidence(**setting)


@pytest.mark.parametrize("setting", ["min_top_score", "min_average_score"])
def test_thresholds_are_finite(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting} nan: a finite number"):
        HeuristicEvidence(**{setting: float("nan")})  # type: ignore[arg-type]


positive = st.floats(0.001, 100)
scored_rounds = st.lists(st.lists(positive, min_size=1, max_size=3), min_size=1, max_size=4)


@given(rounds=scored_rounds, which=st.tuples(st.integers(0, 3), st.integers(0, 2)), raised=positive)
def test_a_higher_score_never_lowers_the_verdict(
    rounds: list[list[float]], which: tuple[int, int], raised: float
) -> None:
    q, p = which[0] % len(rounds), which[1] % len(rounds[which[0] % len(rounds)])
    assume(raised >= rounds[q][p])
    heuristic = HeuristicEvidence(min_top_score=1.0, min_average_score=0.5)
    before = judge(*(query(*scores) for scores in rounds), heuristic=heuristic)
    rounds[q][p] = raised
    after = judge(*(query(*scores) for scores in rounds), heuristic=heuristic)
    assert after.score >= before.score - 1e-12
    assert after.sufficient >= before.sufficient
    assert after.num_sufficient_queries >= before.num_sufficient_queries


@given(rounds=scored_rounds, length=st.integers(0, 20), longer=st.integers(0, 20))
def test_more_text_or_one_more_passage_never_lowers_the_verdict(
    rounds: list[list[float]], length: int, longer: int
) -> None:
    before = judge(*(query(*scores, text="x" * length) for scores in rounds))
    more_text = judge(*(query(*scores, text="x" * (length + longer)) for scores in rounds))
    one_more = judge(*(query(*scores, min(scores), text="x" * length) for scores in rounds))
    for after in (more_text, one_more):
        assert after.score >= before.score - 1e-12
        assert after.sufficient >= before.sufficient


@given(st.lists(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=3), max_size=4))
def test_the_score_lies_in_0_and_1_and_does_not_depend_on_what_was_seen(rounds: list[list[float | None]]) -> None:
    results = [query(*scores) for scores in rounds]
    seen: list[Passage] = [passage("earlier", LONG, score=9.0)]
    found = HeuristicEvidence().judge_round(task(), results, seen)
    assert 0 <= found.score <= 1
    assert found == judge(*results)
