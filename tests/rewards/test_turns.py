"""What each turn brought: terms that know their turns, and that all of it adds up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given as forall
from hypothesis import strategies as st

from agentgrpo.core.types import Episode, Outcome, RewardResult, ToolRecord
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.rewards.registry import TERMS, Reward, RewardTerm, TurnTerm
from tests.builders import episode, given, group, sampled, task

REFUSED = Outcome.INVALID_ARGS


def search(turn: int, retriever: str = "vdb", *, rerank: bool = False, repeated: bool = False) -> ToolRecord:
    """As the search agent records a query."""
    return ToolRecord(
        name="search",
        arguments={"query": "q", "retriever": retriever, "served": retriever, "rerank": rerank, "subquestion": None},
        outcome=REFUSED if repeated else Outcome.SUCCESS,
        turn=turn,
        num_results=0 if repeated else 3,
        detail="repeated" if repeated else "",
    )


def episode_of(*tokens: int, calls: Sequence[ToolRecord] = (), answer: str = "Castin", **metrics: float) -> Episode:
    """With turns of so many tokens."""
    segments = [given(1, 2)]
    for n in tokens:
        segments += [sampled(*range(n)), given(9, role="tool")]
    return replace(episode(task(), *segments, answer=answer, metrics=metrics), tool_records=tuple(calls))


SEARCHES = episode_of(
    1, 2, 3, 4,
    calls=[
        search(0, "web", rerank=True),
        search(0, "vdb"),
        search(1, repeated=True),
        search(1, repeated=True),
        search(2, "vdb"),
        search(2, repeated=True),
        ToolRecord(name="rerank", arguments={}, outcome=Outcome.SUCCESS, turn=2),
    ],
    rounds_used=2.0, web_served=1.0, vdb_served=2.0, repeated_search_queries=3.0, rerank_calls=2.0,
)  # fmt: skip
"""A round of two queries; repetitions; a round and a repetition; the answer."""


def per_turn(name: str, of: Episode, **weights: float) -> list[float]:
    term = TERMS[name](**weights)
    assert isinstance(term, TurnTerm)
    return list(term.per_turn(of))


@pytest.mark.parametrize(
    ("name", "weights", "expected"),
    [
        ("per_search", {"weight": -0.5}, [-0.5, 0.0, -0.5, 0.0]),
        ("unnecessary_search", {"weight": -0.5}, [0.0, 0.0, -0.5, 0.0]),
        ("duplicate_query", {"weight": -0.5}, [0.0, -1.0, -0.5, 0.0]),
        ("budget", {"weight": -0.5, "threshold": 0.5, "max_search_rounds": 4}, [0.0, 0.0, -0.5, 0.0]),
        ("budget", {"weight": -0.5, "threshold": 0.5, "max_search_rounds": 2}, [-0.5, 0.0, 0.0, 0.0]),
        ("budget", {"weight": -0.5, "threshold": 0.5, "max_search_rounds": 5}, [0.0, 0.0, 0.0, 0.0]),
        ("retriever_cost", {"web": -0.5, "vdb": -0.125}, [-0.625, 0.0, -0.125, 0.0]),
        ("rerank_cost", {"weight": -0.5}, [-0.5, 0.0, -0.5, 0.0]),
        # of tokens 1, 3, 6, 10 those past 4, up to 8, are 0, 0, 2, 4
        ("overlong", {"weight": -1.0, "max_tokens": 8, "buffer_tokens": 4}, [0.0, 0.0, -0.5, -0.5]),
        # succeeded of made, so far: 2/2, 2/4, 4/7
        ("artist_tools", {"weight": 1.0}, [1.0, -0.5, 4 / 7 - 0.5, 0.0]),
    ],
)
def test_what_was_used_up_is_charged_to_its_turn(name: str, weights: dict[str, float], expected: list[float]) -> None:
    assert per_turn(name, SEARCHES, **weights) == expected
    assert sum(expected) == TERMS[name](**weights)(SEARCHES, 1.0)


def test_evidence_is_gained_turn_by_turn() -> None:
    gained = replace(SEARCHES, metrics_by_turn={"evidence_gain_total": (0.5, 0.0, 0.25, 0.0)})
    assert per_turn("evidence_gain", gained, weight=2.0) == [1.0, 0.0, 0.5, 0.0]
    assert per_turn("evidence_gain", SEARCHES, weight=2.0) == [0.0] * 4  # an agent that does not tell


@pytest.mark.parametrize("name", ["per_search", "unnecessary_search", "duplicate_query", "rerank_cost"])
def test_what_the_record_does_not_account_for_is_charged_to_no_turn(name: str) -> None:
    """An agent may count what it does not record."""
    of = replace(SEARCHES, metrics={n: v + 1 for n, v in SEARCHES.metrics.items()})
    assert [x + 0.0 for x in per_turn(name, of, weight=-0.5)] == [0.0] * 4


def test_every_other_term_comes_with_the_last_turn() -> None:
    known = {name for name, term in TERMS.items() if hasattr(term, "per_turn")}
    assert known == {
        "per_search", "unnecessary_search", "duplicate_query", "budget", "retriever_cost", "rerank_cost", "overlong",
        "artist_tools", "evidence_gain", "tool_success", "milestones", "tool_cost", "invalid_calls",
    }  # fmt: skip


async def reward_of(of: Episode, terms: Mapping[str, RewardTerm], **settings: object) -> RewardResult:
    [result] = (await Reward(judge=ExactMatch(), terms=terms, **settings).score(group(of))).rewards  # type: ignore[arg-type]
    assert result is not None
    return result


PRICED: dict[str, RewardTerm] = {
    "correctness": TERMS["correctness"](weight=1.0),
    "per_search": TERMS["per_search"](weight=-0.125),
}


@pytest.mark.parametrize(
    ("answer", "settings", "expected"),
    [
        ("Castin", {}, (-0.125, 0.0, -0.125, 1.0)),
        ("Castin", {"reward_scale": 4.0}, (-0.5, 0.0, -0.5, 4.0)),
        ("Orlin", {}, (-0.125, 0.0, -0.125, 0.0)),
        # what only a right answer pays shows at the end: no turn is charged before for what a later one decides
        ("Castin", {"cost_when_wrong": 0.5}, (-0.0625, 0.0, -0.0625, 0.875)),
        ("Orlin", {"cost_when_wrong": 0.5}, (-0.0625, 0.0, -0.0625, 0.0)),
        ("Castin", {"cost_when_wrong": 0.0}, (0.0, 0.0, 0.0, 0.75)),
        ("Orlin", {"cost_when_wrong": 0.0}, (0.0, 0.0, 0.0, 0.0)),
        ("Castin", {"mode": "sparse_final_only"}, (0.0, 0.0, 0.0, 1.0)),
    ],
)
async def test_a_reward_by_turn(answer: str, settings: dict[str, object], expected: tuple[float, ...]) -> None:
    result = await reward_of(replace(SEARCHES, answer=answer), PRICED, **settings)
    assert result.turns == expected
    assert sum(expected) == result.total


@dataclass
class Mine:
    """A user's term that knows its turns."""

    turns: Sequence[float]
    value: float = 1.0
    dimension: str = "retrieval_quality"
    is_cost: bool = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.value

    def per_turn(self, episode: Episode) -> Sequence[float]:
        return self.turns


@dataclass
class Plain:
    """A user's term as they have always been."""

    value: float
    dimension: str = "retrieval_quality"
    is_cost: bool = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.value


async def test_user_terms_with_and_without_turns() -> None:
    of = episode_of(1, 1, 1)
    both = await reward_of(of, {"mine": Mine([0.25, 0.5, 0.0]), "plain": Plain(0.125)})
    assert (both.total, both.turns) == (1.125, (0.25, 0.5, 0.375))
    assert not isinstance(Plain(0.0), TurnTerm)
    found = await Reward(judge=ExactMatch(), terms={"mine": Mine([0.0, 1.0])}).score(group(of))
    assert [f and f.message.split(": ")[1] for f in found.failures] == [
        "reward term 'mine' gave 2 values for 3 turns; a number for each is needed"
    ]


async def test_a_turn_that_is_not_finite_cannot_be_scored() -> None:
    scored = await Reward(judge=ExactMatch(), terms={"mine": Mine([math.inf, 0.0])}).score(group(episode_of(1, 1)))
    assert scored.rewards == (None,)
    assert [f and f.kind for f in scored.failures] == ["non_finite_reward"]


async def test_who_sampled_nothing_has_no_turns() -> None:
    assert (await reward_of(episode_of(), {"plain": Plain(0.5)})).turns == ()


price = st.integers(-200, 0).map(lambda n: n / 100)


@forall(
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=8),
    weight=price,
    share=st.sampled_from([0.0, 0.3, 1.0]),
    scale=st.sampled_from([0.1, 1.0, 3.0]),
    grade=st.floats(0, 5),
)
async def test_turns_add_up_to_the_total_as_exactly_as_numbers_can(
    counts: list[int], weight: float, share: float, scale: float, grade: float
) -> None:
    of = episode_of(
        *counts,
        calls=[search(turn, repeated=True) for turn, n in enumerate(counts) for _ in range(n)],
        repeated_search_queries=float(sum(counts)),
    )
    terms = {"grade": Plain(grade), "cost": TERMS["duplicate_query"](weight=weight)}
    result = await reward_of(of, terms, cost_when_wrong=share, reward_scale=scale)
    finest = min((abs(t) for t in result.turns if t), default=0.0)
    assert len(result.turns) == len(counts)
    assert abs(math.fsum([*result.turns, -result.total])) <= math.ulp(finest) / 2
    if math.ulp(finest) <= math.ulp(result.total):
        assert math.fsum(result.turns) == result.total
