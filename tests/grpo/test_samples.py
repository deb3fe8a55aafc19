"""Scored groups to training samples, value by value."""

from __future__ import annotations

from dataclasses import replace

from agentgrpo.core.types import RewardResult, ScoredGroup, TrainingSample
from agentgrpo.grpo.advantages import ADVANTAGES
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.samples import group_advantages, is_zero_variance, to_samples
from tests.builders import episode, given, group, sampled, task


def reward(total: float) -> RewardResult:
    return RewardResult(total=total, terms={}, dimensions={}, correctness=0.0)


def test_a_group_becomes_aligned_samples_with_their_shared_prompt() -> None:
    one = task(id="q")
    a = episode(
        one,
        given(1, 2, 3),
        sampled(4, 5, logprobs=[-0.1, -0.2], version=7),
        given(6),
        sampled(9, logprobs=[-0.3], version=7),
    )
    b = episode(one, given(1, 2, 3), sampled(8, logprobs=[-0.4], version=7), sample_index=1)
    unscored = episode(one, given(1, 2, 3), sampled(8), sample_index=2)
    scored = ScoredGroup(group=group(a, b, unscored), rewards=(reward(1.0), reward(0.0), None))
    advantages = group_advantages([scored], Algorithm(advantage="group_mean"))
    assert advantages == [[0.5, -0.5, None]]
    assert to_samples([scored], advantages) == [
        TrainingSample(
            group_id="q",
            sample_index=0,
            token_ids=(1, 2, 3, 4, 5, 6, 9),
            loss_mask=(0, 0, 0, 1, 1, 0, 1),
            rollout_logprobs=(0.0, 0.0, 0.0, -0.1, -0.2, 0.0, -0.3),
            advantage=0.5,
            num_prompt_tokens=3,
            policy_version=7,
        ),
        TrainingSample(
            group_id="q",
            sample_index=1,
            token_ids=(1, 2, 3, 8),
            loss_mask=(0, 0, 0, 1),
            rollout_logprobs=(0.0, 0.0, 0.0, -0.4),
            advantage=-0.5,
            num_prompt_tokens=3,
            policy_version=7,
        ),
    ]


def test_prompts_that_differ_share_only_what_is_equal() -> None:
    one = task()
    a = episode(one, given(1, 2, 3), sampled(4))
    b = episode(one, given(1, 2, 5, 6), sampled(4), sample_index=1)
    scored = ScoredGroup(group=group(a, b), rewards=(reward(1.0), reward(0.0)))
    assert [s.num_prompt_tokens for s in to_samples([scored], [[1.0, -1.0]])] == [2, 2]


def test_a_branch_that_samples_nothing_has_nothing_to_learn() -> None:
    one = task()
    full = episode(one, given(1, 2, 3))
    scored = ScoredGroup(group=group(full, episode(one, given(1, 2), sampled(4))), rewards=(reward(0.0), reward(1.0)))
    assert [s.loss_mask for s in to_samples([scored], [[-1.0, (1.0,)]])] == [(0, 0, 0), (0, 0, 1)]


def test_what_teaches_nothing_depends_on_the_advantage() -> None:
    def of(*rewards: tuple[float, dict[str, float]]) -> ScoredGroup:
        episodes = [episode(task(), given(1), sampled(2), sample_index=i) for i in range(len(rewards))]
        results = [replace(reward(total), terms=terms) for total, terms in rewards]
        return ScoredGroup(group=group(*episodes), rewards=tuple(results))

    same_sum = of((0.5, {"right": 1.0, "cost": -0.5}), (0.5, {"right": 0.5}), (0.5, {"format": 0.5}))
    same = of((0.5, {"right": 0.5}), (0.5, {"right": 0.5}))
    single, nothing = of((1.0, {"right": 1.0})), of((0.0, {"right": 0.0}))
    differing = of((1.0, {"right": 1.0}), (0.0, {"right": 0.0}))
    assert {
        name: [is_zero_variance(g, Algorithm(advantage=name)) for g in (differing, same_sum, same, single, nothing)]
        for name in ADVANTAGES
    } == {
        "group_zscore": [False, True, True, True, True],
        "group_mean": [False, True, True, True, True],
        "batch_zscore": [False, True, True, True, True],
        "leave_one_out": [False, True, True, True, True],
        "max_rl": [False, True, True, True, True],
        "per_term": [False, False, True, True, True],
        "none": [False, False, False, False, True],
        "accepted": [False, True, True, True, True],
    }
