"""The memory agent's terms and presets: golden numbers by hand, and writers that must not be paid."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Branch, Episode, RewardResult
from agentgrpo.environments.memory.metrics import NAMES
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.samples import group_advantages, is_zero_variance
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.judges.composed import Questions
from agentgrpo.rewards.registry import TERMS, BranchTerm, Reward, RewardTerm
from tests.builders import given, sampled
from tests.rewards import writers
from tests.rewards.test_idle import OTHERS
from tests.rewards.test_presets import MEMORY, PRESETS, build
from tests.rewards.writers import SKIP, chunk, group_of, writer

JUDGE = Questions(judge=ExactMatch())
# of GOOD, FLAWED, EVERYTHING, SILENT: each chunk's reward
GOLDEN: Mapping[str, Sequence[Sequence[float]]] = {
    "memory": (
        # 1 + 0.3·0.8, a call 0.2, validity 0.5; the rightly skipped chunk has both
        (1.94, 1.94, 1.94, 1.94),
        # half the calls, half of what was wanted, text
        (1.94, 1.94, 1.94, 1.24 + 0.2 / 2 + 0.5 / 2 - 0.2),
        # 0.5 - 0.5·0.3·0.1, and 0.2 + 0.5 of 2/4, 0/2, 1/3, 2/4
        (0.485 + 0.7 / 2, 0.485, 0.485 + 0.7 / 3, 0.485 + 0.7 / 2),
        (-0.2,) * 4,
    ),
    "mem_alpha": (
        # 1 + 0.05·0.8 + calls 1 + 0.1; nothing was judged of the skipped chunk
        (2.14, 2.04, 2.14, 2.14),
        (2.14, 2.04, 2.14, 1.64),
        # 0.5 - 0.05·0.1, and 1 + 0.1 of 2/4, 0/2, 1/3, 2/4
        (0.495 + 1.1 / 2, 0.495, 0.495 + 1.1 / 3, 0.495 + 1.1 / 2),
        (0.0,) * 4,
    ),
    "personamem": (
        # 1, format 0.2, evidence 0.3
        (1.5, 1.2, 1.5, 1.5),
        (1.5, 1.2, 1.5, 1.3),
        # evidence 0.3 of 0, -1, -1/3, 0, not below -0.1; no right call, and so no format, in the second chunk
        (0.7, 0.4, 0.6, 0.7),
        (-0.1,) * 4,
    ),
}


async def scored(reward: Reward, *episodes: Episode) -> list[RewardResult]:
    found = (await reward.score(group_of(*episodes))).rewards
    assert all(r is not None for r in found)
    return [r for r in found if r is not None]


async def totals(preset: str, *episodes: Episode) -> list[float]:
    return [r.total for r in await scored(build(preset, JUDGE), *episodes)]


def test_every_memory_preset_has_its_golden_rows() -> None:
    assert sorted(GOLDEN) == sorted(MEMORY) == sorted(OTHERS - {"environment", "own"})


@pytest.mark.parametrize("preset", sorted(GOLDEN))
async def test_rewards_of_a_preset(preset: str) -> None:
    of = (writers.GOOD, writers.FLAWED, writers.EVERYTHING, writers.SILENT)
    results = await scored(build(preset, JUDGE), *of)
    assert [r.branches for r in results] == [pytest.approx(row, abs=1e-12) for row in GOLDEN[preset]]
    assert [r.total for r in results] == [math.fsum(r.branches) / 4 for r in results]
    assert [math.fsum(r.terms.values()) for r in results] == pytest.approx([r.total for r in results], abs=1e-12)
    assert [math.fsum(r.turns) for r in results] == pytest.approx([r.total for r in results], abs=1e-12)
    assert [math.fsum(r.dimensions.values()) for r in results] == pytest.approx([r.total for r in results], abs=1e-12)


# --- negative controls

NOTHING = (
    *(writers.SILENT, writers.SKIPPING, writers.FAILING, writers.BABBLING, writers.DELETED),
    *(writers.JUNK, writers.JUNK_AND_TEXT, writers.ONE_OF_JUNK),
    writer(*[chunk()] * 4, answers=writers.EMPTY, memory_tokens=0, knows=False),
)
"""They end with a memory that is empty, or in which nothing is right."""
WRITING = (writers.GOOD, writers.FLAWED, writers.EVERYTHING, writers.ONE_OF_GOOD)


@pytest.mark.parametrize("preset", sorted(GOLDEN))
async def test_who_writes_nothing_is_paid_worst(preset: str) -> None:
    """Not best, as where an empty memory is perfectly compressed and a skip a perfect call."""
    idle, busy = await totals(preset, *NOTHING), await totals(preset, *WRITING)
    assert len(set(idle)) == 1
    assert idle[0] <= 0 < min(busy)


@pytest.mark.parametrize("preset", sorted(GOLDEN))
async def test_a_skip_or_a_false_entry_adds_nothing_to_a_right_one(preset: str) -> None:
    """Wanted are 2, 0, 1 and 2 changes: the second chunk alone is rightly skipped."""
    true = chunk(2, 2, 2)
    others = {
        "silence": [chunk()] * 3,
        "skips": [chunk(), SKIP, SKIP],
        "false entries": [chunk(1, 1, 0)] * 3,
        "false entries and their deletion": [chunk(2, 2, 0)] * 3,
        "an order to the grader, and a skip": [chunk(2, 1, 0, skips=1)] * 3,
    }
    episodes = [writer(true, *rest, answers=writers.HALF, memory_tokens=20) for rest in others.values()]
    silence, *tricks = await totals(preset, *episodes)
    assert max(tricks) <= silence
    rightly = writer(true, SKIP, chunk(), chunk(), answers=writers.HALF, memory_tokens=20)
    [skipped] = await totals(preset, rightly)
    assert skipped > silence


@pytest.mark.parametrize("preset", sorted(GOLDEN))
async def test_idle_rollouts_are_pushed_away_from_wherever_another_one_writes(preset: str) -> None:
    group = await build(preset, JUDGE).score(group_of(writers.SILENT, writers.SKIPPING, writers.JUNK, writers.GOOD))
    algorithm = Algorithm(credit="branch")
    [credits] = group_advantages([group], algorithm)
    assert all(a < 0 for c in credits[:3] if isinstance(c, tuple) for a in c)
    assert all(a > 0 for c in credits[3:] if isinstance(c, tuple) for a in c)
    idle = await build(preset, JUDGE).score(group_of(*[writers.SKIPPING] * 4))
    busy = await build(preset, JUDGE).score(group_of(*[writers.FLAWED] * 4))
    assert [is_zero_variance(g, algorithm) for g in (group, idle, busy)] == [False, True, True]


@pytest.mark.parametrize("preset", sorted(GOLDEN))
async def test_who_writes_everything_is_paid_less_than_who_writes_what_matters(preset: str) -> None:
    """Although all its answers are right too."""
    everything = replace(writers.EVERYTHING, answer=writers.GOOD.answer)
    good, all_of_it, junk = await totals(preset, writers.GOOD, everything, writers.JUNK)
    assert good > all_of_it > junk


@pytest.mark.parametrize("preset", sorted(GOLDEN))
async def test_an_empty_answer_is_wrong(preset: str) -> None:
    """And so is one that was never asked for."""
    given_up = [replace(writers.GOOD, answer=answer) for answer in ('["", ""]', '["unknown", "..."]', "", None)]
    results = await scored(build(preset, JUDGE), writers.GOOD, *given_up)
    assert [r.correctness for r in results] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert max(r.total for r in results[1:]) < results[0].total


# --- terms


def of_chunks(name: str, *chunks: Any, memory_tokens: int = 40, knows: bool = True, **weights: Any) -> list[float]:
    term = TERMS[name](**weights)
    assert isinstance(term, BranchTerm)
    of = writer(*chunks, answers=writers.RIGHT, memory_tokens=memory_tokens, knows=knows)
    values = list(term.per_branch(of))
    assert term(of, 1.0) == math.fsum(values) / len(values)
    return values


def test_calls_that_succeed() -> None:
    # wanted are 2, 0, 1 and 2; of the last chunk's calls one is a false entry and one a skip
    rows = (chunk(4, 3, 3), SKIP, chunk(), chunk(3, 2, 1, skips=1))
    assert of_chunks("call_success", *rows, weight=2.0, skip_counts=True) == [1.5, 2.0, 0.0, 2 / 3]
    assert of_chunks("call_success", *rows, weight=2.0, skip_counts=False) == [1.5, 0.0, 0.0, 2 / 3]
    assert of_chunks("call_success", *rows, weight=2.0, skip_counts=True, knows=False) == [1.5, 0.0, 0.0, 2 / 3]
    assert of_chunks("call_success", *rows, weight=1.0, skip_counts=True, memory_tokens=0) == [0.0] * 4
    # skips beside calls that fail make up for none of them; repeated, or where something is wanted, they are none
    rows = (chunk(4, 0, skips=3), chunk(2, skips=2), SKIP, chunk(2, malformed=2))
    assert of_chunks("call_success", *rows, weight=1.0, skip_counts=True) == [0.0] * 4


def test_calls_that_nobody_judged() -> None:
    # deletes, by a language model: they are left out
    some = (Counter(calls=3, executed=2, judged=1, valid=1), Counter(calls=1, executed=1), chunk(2, 2, 1), chunk())
    assert of_chunks("call_success", *some, weight=1.0, skip_counts=True) == [0.5, 0.0, 0.5, 0.0]
    nothing = (Counter(calls=4, executed=3), Counter(calls=1, executed=1), chunk(2, 0), chunk())
    assert of_chunks("call_success", *nothing, weight=1.0, skip_counts=True) == [0.75, 1.0, 0.0, 0.0]


def test_valid_entries() -> None:
    # wanted are 2, 0, 1 and 2
    rows = (chunk(1, 1, 1), SKIP, chunk(4, 4, 1), chunk())
    assert of_chunks("validity", *rows, weight=2.0, recall=True) == [1.0, 2.0, 0.5, 0.0]
    assert of_chunks("validity", *rows, weight=2.0, recall=False) == [2.0, 0.0, 0.5, 0.0]
    # where nobody knows what was wanted, a skip earns nothing and what was written is all that counts
    assert of_chunks("validity", *rows, weight=2.0, recall=True, knows=False) == [2.0, 0.0, 0.5, 0.0]
    # a skip earns nothing where something was wanted, and silence never
    rows = (SKIP, chunk(), SKIP, chunk(2, 0, skips=1))
    assert of_chunks("validity", *rows, weight=2.0, recall=True) == [0.0] * 4
    assert of_chunks("validity", *[SKIP] * 4, weight=2.0, recall=True) == [0.0, 2.0, 0.0, 0.0]
    assert of_chunks("validity", *[SKIP] * 4, weight=2.0, recall=True, memory_tokens=0) == [0.0] * 4


def test_compression_may_be_gated_by_what_the_memory_is_good_for() -> None:
    gated, free = TERMS["compression"](weight=0.5, gated=True), TERMS["compression"](weight=0.5, gated=False)
    assert not isinstance(gated, BranchTerm)
    # 40 and 220 of 200 tokens, none, and 10 that count as none
    of = (writers.GOOD, writers.EVERYTHING, writers.SILENT, writers.ONE_OF_JUNK)
    assert [gated(e, 0.5) for e in of] == pytest.approx([0.2, -0.025, 0.0, 0.0])
    assert [gated(e, 0.0) + 0.0 for e in of] == [0.0] * 4
    assert [free(e, 0.0) for e in of] == pytest.approx([0.4, -0.05, 0.0, 0.0])


def test_text_outside_of_calls() -> None:
    rows = (chunk(1, 1, stray=1), chunk(1, 1), SKIP, chunk(stray=1))
    assert [v + 0.0 for v in of_chunks("stray_text", *rows, weight=-0.5)] == [-0.5, 0.0, 0.0, -0.5]
    assert of_chunks("stray_text", *rows, weight=-0.5, memory_tokens=0) == [-0.5] * 4
    with pytest.raises(ConfigError, match=r"StrayText weight=0.5: a penalty or cost is 0 or less; write -0.5"):
        TERMS["stray_text"](weight=0.5)


def test_form_and_evidence_of_personamem() -> None:
    rows = (chunk(2, 1, 1), SKIP, chunk(1, 1, 1, stray=1), chunk(3, 2, 2, malformed=1))
    assert of_chunks("memory_format", *rows, weight=0.2) == [0.2, 0.2, 0.0, 0.0]
    assert of_chunks("memory_format", *rows, weight=0.2, memory_tokens=0) == [0.0] * 4
    # silence, too many calls, a skip where something is wanted, a false entry
    rows = (chunk(), chunk(1, over_limit=1), SKIP, chunk(1, 1))
    assert of_chunks("memory_format", *rows, weight=0.2) == [0.0] * 4
    weights = {"weight": 0.5, "low": -0.1, "high": 0.3}
    rows = (chunk(4, 4, 4), chunk(4, 4, 3), chunk(4, 4, 0), SKIP)
    assert of_chunks("evidence", *rows, **weights) == [0.3, 0.25, -0.1, 0.0]
    assert of_chunks("evidence", *rows, **weights, memory_tokens=0) == [-0.1] * 4
    with pytest.raises(ConfigError, match=r"Evidence low=0.1, high=0.3: low <= 0 <= high is allowed"):
        TERMS["evidence"](weight=0.5, low=0.1, high=0.3)


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("call_success", {"weight": 1.0, "skip_counts": 1}, "CallSuccess skip_counts=1: true or false is allowed"),
        ("compression", {"weight": True, "gated": True}, "Compression weight=True: a finite number is allowed"),
        ("validity", {"weight": math.nan, "recall": True}, "Validity weight=nan: a finite number is allowed"),
    ],
)
def test_switches_are_no_numbers_and_numbers_no_switches(name: str, weights: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TERMS[name](**weights)


def test_which_terms_know_their_branches() -> None:
    known = {name for name, term in TERMS.items() if hasattr(term, "per_branch")}
    assert known == {"call_success", "validity", "evidence", "memory_format", "stray_text"}


def test_a_branch_of_several_turns_has_what_they_counted_together() -> None:
    turns = Branch(segments=(given(1), sampled(2), given(3), sampled(4)))
    of = replace(
        writers.GOOD,
        branches=(turns, Branch(segments=(given(1),)), turns),
        metrics_by_turn=dict.fromkeys(writers.GOOD.metrics_by_turn, (1.0, 3.0, 0.0, 2.0)),
    )
    term = TERMS["evidence"](weight=0.125, low=-1.0, high=1.0)
    assert isinstance(term, BranchTerm)
    # judged and valid are 4, nothing and 2
    assert term.per_branch(of) == [0.125, 0.0, 0.125]


# --- what an agent must count


@pytest.mark.parametrize("preset", sorted(GOLDEN))
@pytest.mark.parametrize("metric", ["calls", "executed", "valid", "wanted", "stray", "empty_memory", "compression"])
async def test_a_metric_that_is_not_counted_is_an_error_and_not_a_zero(preset: str, metric: str) -> None:
    reward = build(preset, JUDGE)
    reward.refuse_uncounted(NAMES)
    used = {
        "memory": {"calls", "executed", "valid", "wanted", "stray", "empty_memory", "compression"},
        "mem_alpha": {"calls", "executed", "valid", "wanted", "empty_memory", "compression"},
        "personamem": {"calls", "executed", "valid", "wanted", "stray", "empty_memory"},
    }
    uncounted = replace(writers.GOOD, metrics={n: v for n, v in writers.GOOD.metrics.items() if n != metric})
    if metric in used[preset]:
        with pytest.raises(ConfigError, match=f"reads the metric '{metric}', which this environment does not count"):
            reward.refuse_uncounted(NAMES - {metric})
        with pytest.raises(ConfigError, match=f"reads the metric '{metric}', which this environment does not count"):
            await scored(reward, uncounted)
    else:
        reward.refuse_uncounted(NAMES - {metric})
        assert await scored(reward, uncounted) == await scored(reward, writers.GOOD)


async def test_a_metric_that_is_not_counted_by_turn_is_an_error_and_not_a_zero() -> None:
    whole = replace(writers.GOOD, metrics_by_turn={})
    short = replace(writers.GOOD, metrics_by_turn=dict(writers.GOOD.metrics_by_turn) | {"executed": (1.0,) * 3})
    with pytest.raises(ConfigError, match=r"reads the metric '\w+' of each of 4 turns, .* counts it for 0;"):
        await scored(build("memory", JUDGE), whole)
    with pytest.raises(
        ConfigError, match="'executed' of each of 4 turns, and this environment counts it for 3; remove the"
    ):
        await scored(build("memory", JUDGE), short)


def test_the_presets_name_what_there_is() -> None:
    for name in MEMORY:
        assert (PRESETS / f"{name}.yaml").is_file()


# --- how a reward counts them


@dataclass
class Mine:
    """A user's term that knows its branches."""

    branches: Sequence[float]
    is_cost: bool = False
    dimension: str = "search_efficiency"

    def __call__(self, episode: Episode, correctness: float) -> float:
        raise AssertionError("its value is the mean of its branches")

    def per_branch(self, episode: Episode) -> Sequence[float]:
        return self.branches


@pytest.mark.parametrize(
    ("answers", "settings", "expected"),
    [
        (writers.RIGHT, {}, (1.0 - 0.5, 1.0, 1.0 - 0.25, 1.25)),
        (writers.RIGHT, {"reward_scale": 2.0}, (1.0, 2.0, 1.5, 2.5)),
        (writers.HALF, {"cost_when_wrong": 0.5}, (0.25, 0.5, 0.375, 0.625)),
        (writers.HALF, {"cost_when_wrong": 0.5, "correct_threshold": 0.5}, (0.0, 0.5, 0.25, 0.75)),
        (writers.WRONG, {"cost_when_wrong": 0.0}, (0.0, 0.0, 0.0, 0.0)),
        (writers.RIGHT, {"mode": "sparse_final_only"}, ()),
    ],
)
async def test_scale_and_share_of_branches(
    answers: tuple[str, ...], settings: dict[str, Any], expected: tuple[float, ...]
) -> None:
    terms: dict[str, RewardTerm] = {
        "correctness": TERMS["correctness"](weight=1.0),
        "mine": Mine((-0.5, 0.0, -0.25, 0.25), is_cost=True),
    }
    of = writer(*[chunk(1, 1, 1)] * 4, answers=answers, memory_tokens=40)
    [result] = await scored(Reward(judge=JUDGE, terms=terms, **settings), of)
    assert result.branches == expected
    assert result.total == (math.fsum(expected) / 4 if expected else 1.0)
    assert result.total == math.fsum(result.terms.values()) == math.fsum(result.turns)


async def test_what_does_not_fit_the_branches_is_refused() -> None:
    found = await Reward(judge=JUDGE, terms={"mine": Mine((0.0,) * 3)}).score(group_of(writers.GOOD))
    assert found.failures[0] is not None
    assert "reward term 'mine' gave 3 values for 4 branches" in found.failures[0].message
    for row in ((math.inf, 0.0, 0.0, 0.0), (math.inf, -math.inf, 0.0, 0.0), (0.0, math.nan, 0.0, 0.0)):
        found = await Reward(judge=JUDGE, terms={"mine": Mine(row)}).score(group_of(writers.GOOD))
        assert found.rewards == (None,)
        assert [f and f.kind for f in found.failures] == ["non_finite_reward"]


async def test_without_such_a_term_there_are_no_rewards_of_branches() -> None:
    [result] = await scored(build("correctness", JUDGE), writers.GOOD)
    assert (result.total, result.branches) == (1.0, ())
