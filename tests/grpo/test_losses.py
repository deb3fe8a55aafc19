"""Token losses and aggregations against hand-computed values and finite differences."""

from __future__ import annotations

import math

import pytest
import torch

from agentgrpo.grpo.losses import AGGREGATIONS, LOSSES, clipped_surrogate, constant

LN2, LN4 = math.log(2), math.log(4)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_three_tokens_by_hand() -> None:
    """Ratios 2, 1/2 and 1 under clip 0.2 / 0.28."""
    old = tensor(-2.0, -1.0, -3.0)
    logprobs = (old + tensor(LN2, -LN2, 0.0)).requires_grad_()
    loss, ratio, clipped = clipped_surrogate(logprobs, old, tensor(3.0, 3.0, 3.0), clip_low=0.2, clip_high=0.28)
    assert ratio.tolist() == pytest.approx([2.0, 0.5, 1.0])
    # A > 0: the first is held at 1.28, the second is pushed up again: it is below the clip, min keeps the ratio
    assert loss.tolist() == pytest.approx([-1.28 * 3, -0.5 * 3, -3.0])
    assert clipped.tolist() == [True, False, False]
    loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([0.0, -0.5 * 3, -3.0])


def test_three_tokens_by_hand_with_a_negative_advantage() -> None:
    old = tensor(-2.0, -1.0, -3.0)
    logprobs = (old + tensor(LN2, -LN2, 0.0)).requires_grad_()
    loss, _, clipped = clipped_surrogate(logprobs, old, tensor(-3.0, -3.0, -3.0), clip_low=0.2, clip_high=0.28)
    # A < 0: the first goes on being pushed down, the second is held at 0.8
    assert loss.tolist() == pytest.approx([2.0 * 3, 0.8 * 3, 3.0])
    assert clipped.tolist() == [False, True, False]
    loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([2.0 * 3, 0.0, 3.0])


@pytest.mark.parametrize(
    "name, expected",
    [
        # tokens: sample 0 has -1.28 * 3 and -1.5 (advantage 3), sample 1 has +2 (advantage -2, ratio 1)
        ("grpo", (-1.28 * 3 - 1.5) / (2 * 2) + 2 / (2 * 1)),
        ("dr_grpo", (-1.28 * 3 - 1.5 + 2) / (2 * 10)),
        ("dapo", (-1.28 * 3 - 1.5 + 2) / 3),
    ],
)
def test_each_loss_of_three_tokens_in_two_samples(name: str, expected: float) -> None:
    spec = LOSSES[name]
    old = tensor(-2.0, -1.0, -3.0)
    loss, _, _ = spec.token_loss(
        old + tensor(LN2, -LN2, 0.0), old, tensor(3.0, 3.0, -2.0), clip_low=0.2, clip_high=0.28
    )
    first, second = AGGREGATIONS[spec.aggregation]([2, 1], 10)
    assert float(loss @ tensor(first, first, second)) == pytest.approx(expected, rel=1e-12)


def test_the_weights_hold_every_denominator() -> None:
    assert AGGREGATIONS["token_mean"]([2, 6], None) == [1 / 8, 1 / 8]
    assert AGGREGATIONS["sequence_mean"]([2, 6], None) == [1 / 4, 1 / 12]
    assert AGGREGATIONS["constant"]([2, 6], 16) == [1 / 32, 1 / 32]
    with pytest.raises(ValueError, match="needs max_sampled_tokens"):
        constant([2, 6], None)


def test_the_old_policy_is_a_constant() -> None:
    both = tensor(-1.0, -2.0).requires_grad_()
    clipped_surrogate(both, both, tensor(1.0, -1.0), clip_low=0.2, clip_high=0.2).loss.sum().backward()
    assert both.grad.tolist() == [-1.0, 1.0]


def test_a_huge_ratio_stays_finite_and_without_gradient() -> None:
    logprobs = torch.tensor([-1.0, -1000.0], requires_grad=True)
    loss, ratio, _ = clipped_surrogate(
        logprobs, torch.tensor([-1000.0, -1.0]), torch.tensor([-1.0, 1.0]), clip_low=0.2, clip_high=0.2
    )
    assert ratio.tolist() == pytest.approx([math.exp(20), math.exp(-20)])
    loss.sum().backward()
    assert loss.isfinite().all()
    assert logprobs.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_equal_finite_differences(name: str) -> None:
    old = tensor(-2.0, -1.0, -3.0, -0.5, -1.5)
    logprobs = (old + tensor(LN4, -LN2, 0.05, -0.1, LN2)).requires_grad_()
    advantages = tensor(1.5, -0.5, 2.0, -1.0, -3.0)

    def total(x: torch.Tensor) -> torch.Tensor:
        return LOSSES[name].token_loss(x, old, advantages, clip_low=0.2, clip_high=0.28).loss.sum()

    assert torch.autograd.gradcheck(total, (logprobs,), eps=1e-6, atol=1e-8)
