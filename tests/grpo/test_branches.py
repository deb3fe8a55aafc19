"""Credit by branch, from scored groups to the advantage of every token, by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given as forall
from hypothesis import strategies as st

from agentgrpo.core.errors import ConfigError, TrainingError
from agentgrpo.core.types import Branch, Episode, EpisodeGroup, RewardResult, ScoredGroup
from agentgrpo.grpo.advantages import ADVANTAGES, BRANCH_ADVANTAGES, GroupRewards
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.kl import TERM, less_kl
from agentgrpo.grpo.samples import group_advantages, is_zero_variance, to_samples
from tests.builders import episode as single
from tests.builders import given, sampled, task

CREDITS = ("branch", "position")
Rewards = Sequence[Sequence[float] | None]


def episode(branches: int, *, id: str = "t0", sample_index: int = 0) -> Episode:
    """One chunk a branch: a prompt that differs, and two sampled tokens."""
    return Episode(
        task=task(id=id),
        sample_index=sample_index,
        branches=tuple(Branch(segments=(given(1, 10 + t), sampled(2, 3))) for t in range(branches)),
        answer="x",
        exit=single().exit,
        metrics={},
    )


def scored(rewards: Rewards, id: str = "t0") -> ScoredGroup:
    """Of each episode, what each of its branches is rewarded with; None = could not be scored."""
    episodes = [episode(len(r or (0,)), id=id, sample_index=i) for i, r in enumerate(rewards)]
    return ScoredGroup(
        group=EpisodeGroup(task=episodes[0].task, episodes=tuple(episodes)), rewards=tuple(map(result, rewards))
    )


def result(branches: Sequence[float] | None) -> RewardResult | None:
    if branches is None:
        return None
    total = math.fsum(branches) / len(branches)
    return RewardResult(total=total, terms={}, dimensions={}, correctness=0.0, branches=tuple(branches))


def credited(groups: Sequence[ScoredGroup], algorithm: Algorithm) -> dict[tuple[str, int, int], tuple[float, ...]]:
    """(task, episode, chunk) -> TrainingSample.advantage, by the whole way that a step takes."""
    samples = to_samples(groups, group_advantages(groups, algorithm))
    return {(s.group_id, s.sample_index, s.token_ids[1] - 10): tuple(s.token_advantages) for s in samples}


UNEVEN = [(4.0, 2.0), None, (1.0, 1.0, 2.0)]
"""Pooled: mean 2, population std sqrt(6/5)."""
OTHERS = [scored([(100.0,), (300.0, 200.0)], "far"), scored([(0.5, 0.25)] * 2, "same"), scored([(7.0,), None], "one")]
STD = math.sqrt(6 / 5)
EXPECTED = {
    ("branch", "group_zscore"): [(2 / STD, 0.0), (-1 / STD, -1 / STD, 0.0)],
    ("branch", "group_mean"): [(2.0, 0.0), (-1.0, -1.0, 0.0)],
    # less the mean of the other episode's: 4/3 and 3
    ("branch", "leave_one_out"): [(8 / 3, 2 / 3), (-2.0, -2.0, -1.0)],
    ("branch", "none"): [(4.0, 2.0), (1.0, 1.0, 2.0)],
    # columns [4, 1], [2, 1] and [2], which has nothing to compare with
    ("position", "group_zscore"): [(1.0, 1.0), (-1.0, -1.0, 0.0)],
    ("position", "group_mean"): [(1.5, 0.5), (-1.5, -0.5, 0.0)],
    ("position", "leave_one_out"): [(3.0, 1.0), (-3.0, -1.0, 0.0)],
    ("position", "none"): [(4.0, 2.0), (1.0, 1.0, 2.0)],
}


@pytest.mark.parametrize(("credit", "advantage"), EXPECTED)
def test_an_instance_is_compared_with_itself_alone_whatever_else_is_in_the_batch(credit: str, advantage: str) -> None:
    algorithm = Algorithm(credit=credit, advantage=advantage, advantage_eps=0.0)
    own = scored(UNEVEN)
    alone = credited([own], algorithm)
    assert alone == {
        ("t0", i, t): pytest.approx((0.0, 0.0, a, a), abs=1e-12)
        for i, episode_advantages in zip((0, 2), EXPECTED[credit, advantage], strict=True)
        for t, a in enumerate(episode_advantages)
    }
    for batch in ([*OTHERS, own], [own, *OTHERS], [OTHERS[0], own, OTHERS[2]]):
        assert {key: a for key, a in credited(batch, algorithm).items() if key[0] == "t0"} == alone


def test_every_advantage_of_branches_has_its_numbers() -> None:
    assert set(EXPECTED) == {(credit, advantage) for credit in CREDITS for advantage in BRANCH_ADVANTAGES}


rewards_of = st.lists(st.one_of(st.none(), st.lists(st.integers(-8, 8).map(float), min_size=1, max_size=4)), min_size=1)


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("advantage", BRANCH_ADVANTAGES)
@forall(groups=st.lists(rewards_of, min_size=1, max_size=4))
def test_no_bit_of_a_groups_advantages_depends_on_other_groups(
    credit: str, advantage: str, groups: list[Rewards]
) -> None:
    algorithm = Algorithm(credit=credit, advantage=advantage)
    batch = [scored(rewards, f"t{i}") for i, rewards in enumerate(groups)]
    assert group_advantages(batch, algorithm) == [group_advantages([one], algorithm)[0] for one in batch]


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("advantage", BRANCH_ADVANTAGES)
@forall(totals=st.lists(st.one_of(st.none(), st.integers(-8, 8).map(float)), min_size=1, max_size=6))
def test_of_one_branch_each_it_is_credit_by_episode(credit: str, advantage: str, totals: list[float | None]) -> None:
    group = scored([None if r is None else (r,) for r in totals])
    [expected] = ADVANTAGES[advantage]([GroupRewards(totals)])
    [found] = group_advantages([group], Algorithm(credit=credit, advantage=advantage))
    assert [a is None for a in found] == [a is None for a in expected]
    assert [a[0] for a in found if isinstance(a, tuple)] == pytest.approx([a for a in expected if a is not None])


@pytest.mark.parametrize("credit", CREDITS)
def test_a_deterministic_policy_has_no_gradient(credit: str) -> None:
    """Its rollouts are identical: chunks that pay more than others are no reason to change anything."""
    same = scored([(1.0, 0.0, 0.5)] * 3)
    lonely = scored([(1.0, 0.0, 0.5), None])
    hardly = scored([(1.0, 0.0, 0.5), (1.0 + 1e-10, 0.0, 0.5 - 1e-10)])
    same_totals = scored([(1.0, 0.0), (0.0, 1.0)])
    longer = scored([(1.0, 0.5), (1.0, 0.5, 0.75)])
    groups = (same, lonely, hardly, same_totals, longer)
    for advantage in ("group_zscore", "group_mean", "leave_one_out"):
        algorithm = Algorithm(credit=credit, advantage=advantage)
        found = [is_zero_variance(group, algorithm) for group in groups]
        # at a position, the longer one's last chunk has no other to be compared with
        assert found == [True, True, True, False, credit == "position"]
        assert set(credited([same, hardly], algorithm).values()) == {(0.0, 0.0, 0.0, 0.0)}
    assert not is_zero_variance(same, Algorithm(credit=credit, advantage="none"))


def test_a_branch_has_its_advantage_on_all_that_was_sampled_in_it() -> None:
    forked = Episode(
        task=task(),
        sample_index=0,
        branches=(
            Branch(segments=(given(1, 2), sampled(3, 4), given(5, role="tool"), sampled(6))),
            Branch(segments=(given(1, 7), sampled(8))),
        ),
        answer="x",
        exit=single().exit,
        metrics={},
    )
    other = episode(1, sample_index=1)
    group = ScoredGroup(
        group=EpisodeGroup(task=task(), episodes=(forked, other)), rewards=(result((4.0, 1.0)), result((1.0,)))
    )
    advantages = group_advantages([group], Algorithm(credit="branch", advantage="group_mean"))
    assert advantages == [[(2.0, 2.0, -1.0), (-1.0,)]]  # of each sampled message, as it is recorded
    assert [s.advantage for s in to_samples([group], advantages)] == [
        (0.0, 0.0, 2.0, 2.0, 0.0, 2.0),
        (0.0, 0.0, -1.0),
        (0.0, 0.0, -1.0, -1.0),
    ]


def test_without_rewards_of_branches_each_has_the_total() -> None:
    flat = [RewardResult(total=total, terms={}, dimensions={}, correctness=0.0) for total in (1.0, 0.0)]
    group = ScoredGroup(
        group=EpisodeGroup(task=task(), episodes=(episode(3), episode(1, sample_index=1))), rewards=tuple(flat)
    )
    algorithm = Algorithm(credit="branch", advantage="group_mean")
    assert group_advantages([group], algorithm) == [[(0.25,) * 3, (-0.75,)]]
    wrong = ScoredGroup(group=EpisodeGroup(task=task(), episodes=(episode(3),)), rewards=(result((1.0, 0.0)),))
    with pytest.raises(ValueError, match="task t0, sample 0: 2 rewards of branches for 3 branches"):
        group_advantages([wrong], algorithm)


def test_each_branch_pays_for_its_own_kl() -> None:
    group = scored([(1.0, 0.5), (0.25,)])
    [paid] = less_kl([group], [[1.0, 3.0], [-2.0, 0.0], [4.0, 4.0]], 0.125)
    assert [r and (r.branches, r.turns, r.total, r.terms[TERM]) for r in paid.rewards] == [
        ((0.5, 0.75), (-0.5, 1.0), 0.5, -0.25),
        ((-0.75,), (-0.75,), -0.75, -1.0),
    ]
    # the mean of 0.5, 0.75 and -0.75 is 1/6
    [of_group] = group_advantages([paid], Algorithm(credit="branch", advantage="group_mean"))
    assert [a for e in of_group if isinstance(e, tuple) for a in e] == pytest.approx([1 / 3, 7 / 12, -11 / 12])


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("advantage", ["per_term", "batch_zscore"])
def test_an_advantage_that_compares_instances_is_refused(credit: str, advantage: str) -> None:
    allowed = "group_zscore, group_mean, leave_one_out, none"
    with pytest.raises(ConfigError) as raised:
        Algorithm(credit=credit, advantage=advantage)
    assert str(raised.value) == (
        f"algorithm.credit={credit} with advantage={advantage}: credit={credit} allows {allowed}; choose one of these "
        "or credit=episode"
    )


@pytest.mark.parametrize("advantage", BRANCH_ADVANTAGES)
def test_a_reward_that_is_not_finite_is_refused(advantage: str) -> None:
    group = scored([(1.0, 0.0), (0.0, 1.0)])
    bad = RewardResult(total=0.0, terms={}, dimensions={}, correctness=0.0, branches=(math.nan, 0.0))
    broken = ScoredGroup(group=group.group, rewards=(bad, group.rewards[1]))
    with pytest.raises(TrainingError, match=r"rewards of branches \[\(nan, 0.0\), \(0.0, 1.0\)\]: only finite"):
        group_advantages([broken], Algorithm(credit="branch", advantage=advantage))
