"""How terms add up, what is charged when, and what cannot be scored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgrpo.core.errors import ConfigError, EngineError, JudgeError
from agentgrpo.core.types import Episode, Exit, Failure, RewardResult, Task, has_zero_variance
from agentgrpo.judges.answers import ExactMatch, TokenF1
from agentgrpo.judges.base import Grade
from agentgrpo.rewards.own import EnvironmentTerm
from agentgrpo.rewards.registry import TERMS, Reward, RewardTerm
from tests.builders import episode, group, task


def build_terms(terms: Mapping[str, Mapping[str, float]]) -> dict[str, RewardTerm]:
    return {name: TERMS[name](**weights) for name, weights in terms.items()}


def reward(terms: Mapping[str, Mapping[str, float]], **settings: object) -> Reward:
    return Reward(judge=ExactMatch(), terms=build_terms(terms), **settings)  # type: ignore[arg-type]


@dataclass
class Listening:
    """A judge that gives fixed grades and keeps what it was asked."""

    grades: Sequence[float]
    asked: list[list[str]]

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        self.asked.append(list(answers))
        return [Grade(score=g) for g in self.grades]


@dataclass
class Broken:
    error: Exception

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        raise self.error


CORRECT = {"correctness": {"weight": 1.0}}
PRICED = {"correctness": {"weight": 2.0}, "per_search": {"weight": -0.1}, "evidence_gain": {"weight": 0.5}}
SEARCHED = {"rounds_used": 3.0, "evidence_gain_total": 0.8}


async def test_the_total_is_terminal_plus_shaping_times_scale() -> None:
    scored = await reward(PRICED, reward_scale=10.0).score(group(episode(metrics=SEARCHED)))
    assert scored.rewards == (
        RewardResult(
            total=pytest.approx(21.0),  # 10·(2·1 − 0.1·3 + 0.5·0.8)
            terms={"correctness": 20.0, "per_search": pytest.approx(-3.0), "evidence_gain": 4.0},
            dimensions={
                "correctness": 20.0,
                "citation_support": 0.0,
                "retrieval_quality": 4.0,
                "search_efficiency": pytest.approx(-3.0),
            },
            correctness=1.0,
            turns=(scored.rewards[0].total,) if scored.rewards[0] else (),
        ),
    )
    assert scored.failures == (None,)


async def test_sparse_mode_counts_the_terminal_terms_only_and_reads_no_others() -> None:
    scored = await reward(PRICED, mode="sparse_final_only", reward_scale=3.0).score(group(episode(metrics={})))
    assert scored.rewards[0] is not None
    assert scored.rewards[0].total == 6.0
    assert scored.rewards[0].terms == {"correctness": 6.0, "per_search": 0.0, "evidence_gain": 0.0}


@pytest.mark.parametrize(
    ("cost_when_wrong", "answer", "total"),
    [
        (1.0, "Castin", 2.1),  # 2 − 0.3 + 0.4
        (1.0, "Orlin", 0.1),  # −0.3 + 0.4
        (0.5, "Castin", 2.1),
        (0.5, "Orlin", 0.25),  # −0.15 + 0.4
        (0.0, "Castin", 2.1),
        (0.0, "Orlin", 0.4),
        (0.0, None, 0.0),  # no answer, no gain
        (0.5, "  ", -0.15),
    ],
)
async def test_wrong_and_missing_answers_pay_their_share_of_the_costs(
    cost_when_wrong: float, answer: str | None, total: float
) -> None:
    scored = await reward(PRICED, cost_when_wrong=cost_when_wrong).score(
        group(episode(answer=answer, metrics=SEARCHED))
    )
    assert scored.rewards[0] is not None
    assert scored.rewards[0].total == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize(("threshold", "total"), [(0.6, 2 * 2 / 3 - 0.3 + 0.4), (0.7, 2 * 2 / 3 + 0.4)])
async def test_wrong_means_a_grade_below_the_threshold(threshold: float, total: float) -> None:
    of = Reward(judge=TokenF1(), terms=build_terms(PRICED), cost_when_wrong=0.0, correct_threshold=threshold)
    scored = await of.score(group(episode(answer="Castin Vel", metrics=SEARCHED)))  # F1 2/3
    assert scored.rewards[0] is not None
    assert scored.rewards[0].total == pytest.approx(total, abs=1e-12)


async def test_the_judge_is_asked_once_about_the_answers_there_are() -> None:
    judge = Listening(grades=[0.25, 0.75], asked=[])
    failed = replace(
        episode(answer="lost", exit=Exit.ERROR), failure=Failure(kind="http_500", stage="retriever", message="x")
    )
    episodes = [episode(answer="one"), episode(answer=None), failed, episode(answer=""), episode(answer="two")]
    scored = await Reward(judge=judge, terms=build_terms(CORRECT)).score(group(*episodes))
    assert judge.asked == [["one", "two"]]
    assert [r and r.total for r in scored.rewards] == [0.25, 0.0, None, 0.0, 0.75]
    assert [r and r.correctness for r in scored.rewards] == [0.25, 0.0, None, 0.0, 0.75]
    assert scored.failures == (None,) * 5


async def test_without_an_answer_the_judge_is_not_called() -> None:
    judge = Listening(grades=[], asked=[])
    scored = await Reward(judge=judge, terms=build_terms(CORRECT)).score(group(episode(answer=None)))
    assert judge.asked == []
    assert [r and r.total for r in scored.rewards] == [0.0]


async def test_without_a_reference_the_judge_fails_only_where_its_grade_is_needed() -> None:
    paid, charged = (EnvironmentTerm("reward", weight=2.0, is_cost=is_cost) for is_cost in (False, True))
    of = group(episode(replace(task(), references=()), metrics={"reward": 1.5}))
    terms: Mapping[str, RewardTerm] = {"paid": paid}
    for asked, total in (
        (Reward(judge=ExactMatch(), terms=terms), 3.0),
        (Reward(judge=ExactMatch(), terms={**terms, **build_terms(CORRECT)}), None),
        (Reward(judge=ExactMatch(), terms={"paid": charged}), 3.0),
        (Reward(judge=ExactMatch(), terms={"paid": charged}, cost_when_wrong=0.5), None),
    ):
        scored = await asked.score(of)
        assert [r and r.total for r in scored.rewards] == [total]
        assert [f and f.kind for f in scored.failures] == ["no_reference" if total is None else None]
        assert asked.needs_grades == (total is None)
        assert not asked.is_graded  # what the environment pays counts as well
    assert Reward(judge=ExactMatch(), terms=build_terms(CORRECT)).is_graded
    beside = EnvironmentTerm("calls", weight=-0.1, is_cost=True)
    assert Reward(judge=ExactMatch(), terms={**build_terms(CORRECT), "calls": beside}).is_graded


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (
            JudgeError("not json", kind="unparsable"),
            Failure(kind="unparsable", stage="judge", message="not json"),
        ),
        (EngineError("down"), Failure(kind="EngineError", stage="judge", message="down")),
        (
            KeyError("score"),
            Failure(kind="JudgeError", stage="judge", message="judge: KeyError: 'score' (test_reward.py:48 in grade)"),
        ),
    ],
)
async def test_a_failed_judge_leaves_its_episodes_unscored(error: Exception, failure: Failure) -> None:
    scored = await Reward(judge=Broken(error), terms=build_terms(CORRECT)).score(
        group(episode(answer="Castin"), episode(answer=None))
    )
    assert scored.rewards[0] is None
    assert scored.rewards[1] is not None
    assert scored.failures == (failure, None)


@pytest.mark.parametrize("grades", [[0.5], [0.5, 0.5, 0.5], [0.5, 1.5], [-0.1, 0.5], [0.5, float("nan")]])
async def test_a_judge_that_breaks_its_contract_scores_nothing(grades: list[float]) -> None:
    judge = Listening(grades=grades, asked=[])
    scored = await Reward(judge=judge, terms=build_terms(CORRECT)).score(
        group(episode(answer="a"), episode(answer="b"))
    )
    assert scored.rewards == (None, None)
    assert [f and f.kind for f in scored.failures] == ["shape" if isnan(grades[-1]) else "bad_verdict"] * 2


@dataclass
class Bad:
    """A user's term."""

    value: float
    dimension: str = "retrieval_quality"
    is_cost: bool = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
async def test_a_total_that_is_not_finite_never_leaves(value: float) -> None:
    scored = await Reward(judge=ExactMatch(), terms={"mine": Bad(value)}).score(group(episode()))
    assert scored.rewards == (None,)
    assert scored.failures[0] is not None
    assert scored.failures[0].kind == "non_finite_reward"
    assert "task t0, sample 0: the terms {'mine': " in scored.failures[0].message


async def test_a_cost_that_was_not_incurred_is_a_plain_zero() -> None:
    scored = await reward({**CORRECT, "per_search": {"weight": -0.1}}).score(
        group(episode(metrics={"rounds_used": 0.0}))
    )
    assert scored.rewards[0] is not None
    assert str(scored.rewards[0].terms["per_search"]) == "0.0"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "sparse_final"}, "reward mode 'sparse_final'; allowed: .* Did you mean 'sparse_final_only'?"),
        ({"terms": {}}, "always 0; add the term 'correctness'"),
        ({"terms": build_terms({"per_search": {"weight": -1.0}}), "mode": "sparse_final_only"}, "always 0"),
        ({"reward_scale": 0.0}, "reward_scale 0.0"),
        ({"reward_scale": float("inf")}, "reward_scale inf"),
        ({"cost_when_wrong": 1.5}, "cost_when_wrong 1.5"),
        ({"correct_threshold": 0.0}, "correct_threshold 0.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Reward(**({"judge": ExactMatch(), "terms": build_terms(CORRECT)} | settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [float("nan"), -float("inf"), "1", True, None])
def test_a_weight_is_a_finite_number(weight: object) -> None:
    with pytest.raises(ConfigError, match=f"Correctness weight={weight!r}: a finite number is allowed"):
        TERMS["correctness"](weight=weight)


finite = st.floats(-10, 10)


@given(
    gains=st.lists(st.tuples(finite, st.sampled_from(["Castin", "Orlin", None])), min_size=1, max_size=4),
    scale=st.floats(0.01, 10),
    share=st.floats(0, 1),
)
async def test_terms_add_up_and_no_episode_depends_on_its_group(
    gains: list[tuple[float, str | None]], scale: float, share: float
) -> None:
    of = reward(PRICED, reward_scale=scale, cost_when_wrong=share)
    episodes = [
        episode(answer=answer, metrics={"rounds_used": abs(gain), "evidence_gain_total": gain})
        for gain, answer in gains
    ]
    together = (await of.score(group(*episodes))).rewards
    alone = [(await of.score(group(e))).rewards[0] for e in episodes]
    assert list(together) == alone
    for result in together:
        assert result is not None
        assert sum(result.terms.values()) == pytest.approx(result.total, abs=1e-9)
        assert sum(result.dimensions.values()) == pytest.approx(result.total, abs=1e-9)


@pytest.mark.parametrize(
    ("rewards", "degenerate"),
    [
        ([], True),
        ([1.0], True),
        ([0.5, 0.5, 0.5], True),
        ([0.5, 0.5 + 1e-10], True),
        ([0.5, 0.5 + 1e-8], False),
        ([0.0, 0.0, 1.0], False),
    ],
)
def test_zero_variance_groups(rewards: list[float], degenerate: bool) -> None:
    assert has_zero_variance(rewards) is degenerate


async def test_a_metric_that_the_agent_does_not_count_is_an_error_and_not_a_zero() -> None:
    with pytest.raises(
        ConfigError, match=r"reads the metric 'rounds_used', which this environment does not count \(it counts turns\)"
    ):
        await reward({"per_search": {"weight": -0.1}}).score(group(episode(task(), metrics={"turns": 1.0})))


def test_every_cost_is_a_term_of_search_efficiency() -> None:
    """So are the prices of length and of invalid calls, which a wrong answer pays in full, and a memory's shortness."""
    costs = {"per_search", "unnecessary_search", "duplicate_query", "budget", "unnecessary_fetch", "retriever_cost"}
    costs |= {"rerank_cost", "tool_cost"}
    in_full = {"overlong", "invalid_calls", "compression"}
    assert {n for n, t in TERMS.items() if t.is_cost} == costs  # type: ignore[attr-defined]
    assert {n for n, t in TERMS.items() if t.dimension == "search_efficiency"} == costs | in_full  # type: ignore[attr-defined]


def test_a_term_that_reads_what_the_agent_does_not_count_is_refused_before_any_episode() -> None:
    """Also where it reads it in some episodes only."""
    counted = {
        "evidence_gain_total",
        "rounds_used",
        "answer_allowed",
        "final_evidence_sufficient",
        "automatic_searches",
    }
    reward(PRICED).refuse_uncounted(counted)
    with pytest.raises(ConfigError, match=r"metric 'rounds_used', which this environment does not count .* reward="):
        reward(PRICED).refuse_uncounted({"evidence_gain_total"})
    with pytest.raises(ConfigError, match="reads the metric 'search_quality_score', which"):
        reward({**CORRECT, "search_quality": {"weight": 1.0}}).refuse_uncounted(counted)
    reward(PRICED, mode="sparse_final_only").refuse_uncounted(())


def test_a_term_that_needs_a_real_episode_is_left_for_one() -> None:
    class Turns:
        dimension, is_cost = "correctness", False

        def __call__(self, episode: Episode, correctness: float) -> float:
            return float(len(episode.turns[0].token_ids))

    counted = Reward(judge=ExactMatch(), terms={"turns": Turns()})
    counted.refuse_uncounted(())
    [result] = asyncio.run(counted.score(group(episode()))).rewards
    assert result is not None
    assert result.total == 2.0
