"""Packing, value by value."""

from __future__ import annotations

import random

import pytest
import torch

from agentgrpo.core.errors import DataError
from agentgrpo.grpo.aggregation import sequence_mean, token_mean
from agentgrpo.grpo.packing import PackedBatch, PackedRow, pack
from tests.grpo.tiny import random_samples, training_sample


def lists(batch: PackedBatch) -> dict[str, object]:
    return {
        "input_ids": batch.input_ids.tolist(),
        "position_ids": batch.position_ids.tolist(),
        "rows": batch.rows,
        "loss_positions": batch.loss_positions.tolist(),
        "targets": batch.targets.tolist(),
        "rollout_logprobs": batch.rollout_logprobs.tolist(),
        "advantages": batch.advantages.tolist(),
        "weights": batch.weights.tolist(),
        "num_tokens": batch.num_tokens,
        "num_loss_tokens": batch.num_loss_tokens,
    }


def test_the_worked_example() -> None:
    a = training_sample(([1, 2], 0), ([10, 11], 1), ([12], 0), ([13], 1), logprobs=[-0.1, -0.2, -0.3], advantage=2.0)
    b = training_sample(([1, 2], 0), ([20], 1), ([21, 22], 0), logprobs=[-0.4], advantage=-1.0, index=1)
    [batch] = pack([b, a], tokens_per_batch=100, token_weights=sequence_mean)
    assert lists(batch) == {
        "input_ids": [1, 2, 10, 11, 12],
        "position_ids": [0, 1, 2, 3, 4],
        "rows": (PackedRow(0, 2, 2, 3), PackedRow(0, 2, 5, 0)),
        "loss_positions": [1, 2, 4, 1],
        "targets": [10, 11, 13, 20],
        "rollout_logprobs": [-0.1, -0.2, -0.3, -0.4],
        "advantages": [2.0, 2.0, 2.0, -1.0],
        "weights": [1 / 6, 1 / 6, 1 / 6, 1 / 2],
        "num_tokens": (3, 1),
        "num_loss_tokens": 4,
    }
    assert batch.samples == (a, b)


def test_a_sample_without_a_shared_prompt() -> None:
    sample = training_sample(([1, 2], 0), ([3, 4], 1), prompt=0)
    [batch] = pack([sample], tokens_per_batch=100, token_weights=token_mean)
    assert batch.input_ids.tolist() == [1, 2, 3]
    assert batch.rows == (PackedRow(0, 0, 0, 3),)
    assert batch.loss_positions.tolist() == [1, 2]


def test_prompts_are_shared_only_within_a_group_and_only_if_equal() -> None:
    samples = [
        training_sample(([1, 2], 0), ([3, 4], 1), group="a"),
        training_sample(([1, 9], 0), ([3, 4], 1), group="a", index=1),
        training_sample(([1, 2], 0), ([5, 6], 1), group="a", index=2),
        training_sample(([1, 2], 0), ([3, 4], 1), group="b"),
    ]
    [batch] = pack(samples, tokens_per_batch=100, token_weights=token_mean)
    assert batch.input_ids.tolist() == [1, 2, 3, 1, 9, 3, 5, 1, 2, 3]
    assert batch.rows == (PackedRow(0, 2, 2, 1), PackedRow(3, 2, 5, 1), PackedRow(0, 2, 6, 1), PackedRow(7, 2, 9, 1))


def test_a_long_prompt_is_not_repeated_for_every_sample() -> None:
    samples = [training_sample(([1] * 20, 0), ([7, 7, 8], 1), index=i) for i in range(5)]  # 20 prompt + 2 own inputs
    batches = pack(samples, tokens_per_batch=8, token_weights=token_mean)
    assert [len(b.rows) for b in batches] == [2, 2, 1]
    assert [len(b.input_ids) for b in batches] == [24, 24, 22]
    other = [training_sample(([2] * 20, 0), ([7, 8], 1), group="other", index=i) for i in range(2)]
    assert [len(b.rows) for b in pack(samples + other, tokens_per_batch=8, token_weights=token_mean)] == [2, 2, 1, 2]


def test_the_budget_counts_input_tokens_and_a_split_group_repeats_its_prompt() -> None:
    samples = [training_sample(([1, 2, 3], 0), ([7, 7, 8], 1), index=i) for i in range(3)]  # 3 prompt + 2 own inputs
    batches = pack(samples, tokens_per_batch=7, token_weights=token_mean)
    assert [b.input_ids.tolist() for b in batches] == [[1, 2, 3, 7, 7, 7, 7], [1, 2, 3, 7, 7]]
    assert [b.rows for b in batches] == [(PackedRow(0, 3, 3, 2), PackedRow(0, 3, 5, 2)), (PackedRow(0, 3, 3, 2),)]
    assert [len(b.rows) for b in pack(samples, tokens_per_batch=1, token_weights=token_mean)] == [1, 1, 1]


def test_denominators_are_those_of_all_samples_whatever_the_split_or_skip() -> None:
    samples = [
        training_sample(([1], 0), ([2, 3], 1), index=0, advantage=1.0),
        training_sample(([1], 0), ([2, 3, 4, 5], 1), index=1, advantage=0.0),
        training_sample(([1], 0), ([6, 7], 1), index=2, advantage=-1.0),
    ]
    for budget in (1, 100):
        batches = pack(samples, tokens_per_batch=budget, token_weights=sequence_mean, skip_zero_advantage=True)
        assert [s.sample_index for b in batches for s in b.samples] == [0, 2]
        assert torch.cat([b.weights for b in batches]).tolist() == [1 / 6] * 4
        assert {b.num_loss_tokens for b in batches} == {8}
    kept = pack(samples, tokens_per_batch=100, token_weights=token_mean)
    assert [s.sample_index for b in kept for s in b.samples] == [0, 1, 2]


def test_the_order_of_the_samples_does_not_matter() -> None:
    samples = random_samples()
    samples += [training_sample(([5], 0), (ids, 1), group="branches") for ids in ([9, 9], [3, 4], [3])]
    expected = [lists(b) for b in pack(samples, tokens_per_batch=40, token_weights=sequence_mean)]
    assert len(expected) > 2
    for seed in range(5):
        shuffled = random.Random(seed).sample(samples, len(samples))
        assert [lists(b) for b in pack(shuffled, tokens_per_batch=40, token_weights=sequence_mean)] == expected


def test_samples_without_a_loss_token_count_nowhere() -> None:
    empty = training_sample(([1, 2], 0), ([3], 0))
    full = training_sample(([1, 2], 0), ([3], 1), index=1)
    [batch] = pack([empty, full], tokens_per_batch=100, token_weights=sequence_mean)
    assert batch.weights.tolist() == [1.0]
    assert batch.samples == (full,)
    assert pack([empty], tokens_per_batch=100, token_weights=sequence_mean) == []
    assert pack([], tokens_per_batch=100, token_weights=sequence_mean) == []


def test_a_loss_token_that_nothing_predicts_or_that_is_shared_is_refused() -> None:
    first = training_sample(([1, 2], 1), prompt=0)
    shared = training_sample(([1], 0), ([2, 3], 1), prompt=2)
    for sample in (first, shared):
        with pytest.raises(DataError, match=r"sample g0/0: its first loss token is at [01]; allowed are"):
            pack([sample], tokens_per_batch=100, token_weights=token_mean)


def test_a_move_keeps_every_value() -> None:
    [batch] = pack(random_samples(groups=1), tokens_per_batch=100, token_weights=token_mean)
    moved = batch.to(torch.device("cpu"), torch.float32)
    assert moved.advantages.dtype == moved.weights.dtype == moved.rollout_logprobs.dtype == torch.float32
    assert moved.input_ids.dtype == torch.int64
    assert moved.advantages.tolist() == pytest.approx(batch.advantages.tolist())
    assert moved.rows == batch.rows


def test_as_many_batches_as_are_asked_for_where_the_samples_allow_it() -> None:
    samples = random_samples()

    def shapes(min_batches: int) -> list[int]:
        batches = pack(samples, tokens_per_batch=1000, token_weights=token_mean, min_batches=min_batches)
        assert sorted((s.group_id, s.sample_index) for b in batches for s in b.samples) == sorted(
            (s.group_id, s.sample_index) for s in samples
        )
        assert {b.num_loss_tokens for b in batches} == {sum(sum(s.loss_mask) for s in samples)}
        return [len(b.rows) for b in batches]

    assert shapes(1) == [9]
    assert len(shapes(2)) == 2
    assert len(shapes(4)) >= 4
    assert shapes(9) == shapes(20) == [1] * 9


def test_rows_that_are_nothing_but_their_prompt_stay_together() -> None:
    """They take no room of their own: no budget parts them."""
    twins = [training_sample(([2, 3], 0), ([4 + i], 1), index=i) for i in range(3)]
    [batch] = pack(twins, tokens_per_batch=100, token_weights=token_mean, min_batches=3)
    assert len(batch.rows) == 3
