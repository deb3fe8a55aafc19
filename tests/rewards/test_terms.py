"""Each term on literal episodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Citation, Episode, Outcome, Segment, ToolRecord
from agentgrpo.rewards.registry import TERMS
from tests.builders import episode, given, sampled, task


def value(name: str, of: Episode, correctness: float = 1.0, **weights: float) -> float:
    return TERMS[name](**(weights or {"weight": 2.0}))(of, correctness)


def cite(*ids: str) -> list[Citation]:
    return [Citation(doc_id=i, marker="[R1Q1D1]", text="") for i in ids]


@pytest.mark.parametrize(
    ("answer", "rounds", "retrieved", "citations", "expected"),
    [
        ("x", 1.0, ["a"], [], -0.1),
        ("x", 1.0, ["a"], ["made-up"], -0.1),
        ("x", 1.0, ["a"], ["a"], 0.0),
        ("x", 1.0, [], [], 0.0),
        ("x", 0.0, ["a"], [], 0.0),
        (None, 1.0, ["a"], [], 0.0),
    ],
)
def test_unsupported_claim(
    answer: str | None, rounds: float, retrieved: list[str], citations: list[str], expected: float
) -> None:
    of = episode(answer=answer, metrics={"rounds_used": rounds}, retrieved=retrieved, citations=cite(*citations))
    assert value("unsupported_claim", of, weight=-0.1) == expected


@pytest.mark.parametrize(("useful", "expected"), [(0.0, 0.0), (1.0, 2.0), (3.0, 2.0)])
def test_fetch_usefulness_is_flat(useful: float, expected: float) -> None:
    assert value("fetch_usefulness", episode(metrics={"useful_fetched_pages": useful})) == expected


@pytest.mark.parametrize(
    ("answer", "errors", "forced", "retrieved", "citations", "passed"),
    [
        ("x", 0.0, 0.0, ["a"], ["a"], 4),
        ("x", 0.0, 0.0, [], [], 4),
        ("3 < 4 > 2", 0.0, 0.0, [], [], 4),
        ("x", 1.0, 0.0, ["a"], ["a"], 3),
        ("x", 0.0, 1.0, ["a"], ["a"], 3),
        ('x <search retriever="web">', 0.0, 0.0, ["a"], ["a"], 3),
        ("x", 0.0, 0.0, ["a"], [], 3),
        ("x</think>", 2.0, 1.0, ["a"], ["b"], 0),
    ],
)
def test_format_is_the_share_of_four_checks(
    answer: str | None, errors: float, forced: float, retrieved: list[str], citations: list[str], passed: int
) -> None:
    metrics = {"format_error_turns": errors, "forced_final_answer": forced}
    of = episode(answer=answer, metrics=metrics, retrieved=retrieved, citations=cite(*citations))
    assert [value("format", of, grade) for grade in (1.0, 0.5, 0.0)] == [2 * passed / 4, passed / 4, 0.0]


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"rounds_used": 1.0, "final_evidence_sufficient": 1.0, "search_quality_score": 0.5}, 2 * 1.5 / 2),
        ({"rounds_used": 2.0, "final_evidence_sufficient": 0.0, "search_quality_score": 0.5}, 2 * 0.5 / 2),
        ({"rounds_used": 0.0, "answer_allowed": 1.0}, 2.0),
        ({"rounds_used": 0.0, "answer_allowed": 0.0}, 0.0),
        # what the environment has searched by itself counts where the policy has searched too
        (
            {"rounds_used": 1.0, "automatic_searches": 1.0}
            | {"final_evidence_sufficient": 1.0, "search_quality_score": 1.0},
            0.0,
        ),
        (
            {"rounds_used": 2.0, "automatic_searches": 1.0}
            | {"final_evidence_sufficient": 1.0, "search_quality_score": 1.0},
            2.0,
        ),
    ],
)
def test_search_quality(metrics: dict[str, float], expected: float) -> None:
    of = episode(metrics={"automatic_searches": 0.0} | metrics)
    assert value("search_quality", of) == expected
    assert value("search_quality", replace(of, answer=None)) == 0.0
    # what was searched is worth something to a wrong answer too; a wrong guess is worth nothing
    assert value("search_quality", of, 0.0) == (expected if metrics["rounds_used"] else 0.0)


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("evidence_gain", "evidence_gain_total"),
        ("early_stop_bonus", "early_stops"),
        ("answer_when_evidence_insufficient", "answer_when_evidence_insufficient"),
        ("forced_final_answer", "forced_final_answer"),
        ("search_budget_exhausted", "search_budget_exhausted_without_answer"),
        ("per_search", "rounds_used"),
        ("duplicate_query", "repeated_search_queries"),
        ("unnecessary_fetch", "unnecessary_fetch_count"),
        ("rerank_cost", "rerank_calls"),
    ],
)
def test_terms_that_weigh_one_metric(name: str, metric: str) -> None:
    sign = 1 if name in ("evidence_gain", "early_stop_bonus") else -1
    assert value(name, episode(metrics={metric: 3.0}), weight=sign * 0.5) == sign * 1.5
    if sign > 0:
        assert value(name, episode(metrics={metric: 3.0}, answer=None), weight=0.5) == 0.0


def test_subquestions_are_covered_where_there_are_some_and_an_answer() -> None:
    covered = {"subquestion_coverage_ratio": 0.5, "active_subquestions": 2.0}
    assert value("subquestion_coverage", episode(metrics=covered)) == 1.0
    assert value("subquestion_coverage", episode(metrics=covered, answer="  ")) == 0.0
    assert value("subquestion_coverage", episode(metrics=covered | {"active_subquestions": 0.0})) == 0.0


@pytest.mark.parametrize(("rounds", "expected"), [(0.0, 0.0), (1.0, 0.0), (4.0, -1.5)])
def test_unnecessary_search_spares_the_first_round(rounds: float, expected: float) -> None:
    assert value("unnecessary_search", episode(metrics={"rounds_used": rounds}), weight=-0.5) == expected


@pytest.mark.parametrize(
    ("rounds", "maximum", "expected"),
    [(3.0, 5, 0.0), (4.0, 5, -0.1), (5.0, 5, -0.1), (0.0, 0, 0.0), (1.0, 0, -0.1)],
)
def test_budget_is_flat_from_its_threshold_on(rounds: float, maximum: int, expected: float) -> None:
    of = episode(metrics={"rounds_used": rounds})
    assert value("budget", of, weight=-0.1, threshold=0.8, max_search_rounds=maximum) == expected


def test_retriever_cost_has_a_price_per_retriever() -> None:
    of = episode(metrics={"web_served": 2.0, "vdb_served": 3.0})
    assert value("retriever_cost", of, web=-0.05, vdb=-0.01) == pytest.approx(-0.13)  # 2·0.05 + 3·0.01


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(6, 0.0), (8, 0.0), (9, -0.25), (10, -0.5), (12, -1.0), (13, -1.0), (40, -1.0)],
)
def test_overlong_rises_over_the_last_tokens_before_the_limit(tokens: int, expected: float) -> None:
    """DAPO, equation 13, with L_max = 12 and L_cache = 4; injected tokens are not the policy's."""
    of = episode(task(), given(1, 2), sampled(*range(5)), given(*range(30), role="tool"), sampled(*range(tokens - 5)))
    assert value("overlong", of, weight=-1.0, max_tokens=12, buffer_tokens=4) == expected
    assert value("overlong", of, 0.0, weight=-0.5, max_tokens=12, buffer_tokens=4) == expected / 2


def test_overlong_needs_a_buffer_within_its_limit() -> None:
    for buffer in (0, 13):
        with pytest.raises(ConfigError, match=f"max_tokens=12, buffer_tokens={buffer}: a buffer of 1 token or more"):
            TERMS["overlong"](weight=-1.0, max_tokens=12, buffer_tokens=buffer)
    with pytest.raises(ConfigError, match=r"weight=0.5: a penalty or cost is 0 or less; write -0.5"):
        TERMS["overlong"](weight=0.5, max_tokens=12, buffer_tokens=4)


PENALTIES = ["unsupported_claim", "answer_when_evidence_insufficient", "forced_final_answer", "search_budget_exhausted"]
COSTS = ["per_search", "unnecessary_search", "duplicate_query", "unnecessary_fetch", "rerank_cost"]


@pytest.mark.parametrize("name", PENALTIES + COSTS)
def test_a_penalty_with_a_forgotten_minus_sign_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"weight=0.5: a penalty or cost is 0 or less; write -0.5"):
        TERMS[name](weight=0.5)


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("budget", {"weight": 0.1, "threshold": 0.8, "max_search_rounds": 5}, "BudgetPenalty weight=0.1"),
        ("budget", {"weight": -0.1, "threshold": 0.0, "max_search_rounds": 5}, "Budget threshold=0.0"),
        ("budget", {"weight": -0.1, "threshold": 0.8, "max_search_rounds": -1}, "max_search_rounds=-1"),
        ("retriever_cost", {"web": 0.1, "vdb": 0.0}, "RetrieverCost web=0.1"),
        ("retriever_cost", {"web": 0.0, "vdb": 0.1}, "RetrieverCost vdb=0.1"),
        ("retriever_cost", {"web": float("inf"), "vdb": 0.0}, "RetrieverCost web=inf: a finite number"),
    ],
)
def test_other_weights_that_make_no_sense(name: str, weights: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TERMS[name](**weights)


# --- Search-R1 and ARTIST

R1 = {"correct_valid": 1.0, "correct_invalid": 0.8, "wrong_valid": 0.2, "wrong_invalid": 0.1}


@pytest.mark.parametrize(
    ("answer", "errors", "correctness", "expected"),
    [
        ("x", 0.0, 1.0, 1.0),
        ("x", 1.0, 1.0, 0.8),
        ("x", 0.0, 0.7, 0.2),
        ("x", 1.0, 0.0, 0.1),
        (None, 0.0, 0.0, 0.0),
    ],
)
def test_search_r1_structure(answer: str | None, errors: float, correctness: float, expected: float) -> None:
    of = episode(answer=answer, metrics={"format_error_turns": errors, "forced_final_answer": 0.0})
    assert value("search_r1_structure", of, correctness, **R1) == expected


def said(text: str) -> Segment:
    return replace(sampled(1), text=text)


def shown(text: str, role: str = "tool") -> Segment:
    return replace(given(2, role=role), text=text)


def acted(acts: str) -> Segment:
    return replace(given(2, role="tool") if acts == "I" else sampled(1), acts=acts)


ASK = shown("Use <think></think> <search></search> <information></information> <answer></answer>.", role="user")


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ([said("<think>a</think><answer>x</answer>")], 0.125 * 2 + 0.5),
        (
            [
                said('<think>a</think><search retriever="web">q</search>'),
                shown("\n<information>d</information>\n"),
                said("<think>b</think><answer>x</answer>"),
            ],
            0.125 * 4 + 0.5,
        ),
        # no thought first
        ([said("<search>q</search>"), shown("<information>d</information>"), said("<answer>x</answer>")], 0.125 * 3),
        # a search without its information
        ([said("<think>a</think><searches>q</searches>"), said("<answer>x</answer>")], 0.125 * 3),
        # two answers
        ([said("<think>a</think><answer>x</answer><answer>y</answer>")], 0.125 * 2),
        # a document cannot answer, nor the policy inform itself
        (
            [said("<think>a</think><search>q</search>"), shown("<information>d</information><answer>x</answer>")],
            0.125 * 3,
        ),
        ([said("<think>a</think><information>d</information><answer>x</answer>")], 0.125 * 2 + 0.5),
        # an open tag is no pair; a search inside a thought is none either
        ([said("<think>a <search>q</search></think><answer>x")], 0.125),
        ([said("gibberish")], 0.0),
        # turns that a renderer has read: two calls side by side, what they bring, an answer
        ([acted("TS"), acted("I"), acted("TA")], 0.125 * 4 + 0.5),
        ([acted("S"), acted("I"), acted("A")], 0.125 * 3),
        # what the text of such a turn looks like plays no part
        ([replace(acted("S"), text="<think>a</think>"), acted("I"), acted("A")], 0.125 * 3),
    ],
)
def test_artist_format(segments: list[Segment], expected: float) -> None:
    assert value("artist_format", episode(task(), ASK, *segments), weight=1.0) == expected


def call(outcome: Outcome) -> ToolRecord:
    return ToolRecord(name="search", arguments={}, outcome=outcome, turn=0)


def test_artist_tools_and_answer() -> None:
    calls = (call(Outcome.SUCCESS), call(Outcome.INVALID_ARGS), call(Outcome.TIMEOUT), call(Outcome.SUCCESS))
    assert value("artist_tools", replace(episode(), tool_records=calls)) == 2 * 2 / 4
    assert value("artist_tools", episode()) == 0.0
    assert [value("artist_answer", episode(), c) for c in (1.0, 0.99, 0.0)] == [2.0, 0.0, 0.0]
