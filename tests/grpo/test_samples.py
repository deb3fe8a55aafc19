"""Scored groups to training samples, value by value."""

from __future__ import annotations

from agentgrpo.grpo.samples import group_advantages, to_samples
from agentgrpo.types import RewardResult, ScoredGroup, TrainingSample
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
    advantages = group_advantages([scored], lambda rewards: [None if r is None else r - 0.5 for r in rewards])
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
