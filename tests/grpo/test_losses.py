"""Token losses and aggregations against hand-computed values and finite differences."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from agentgrpo.grpo.aggregation import AGGREGATIONS, constant
from agentgrpo.grpo.losses import (
    LOSSES,
    LossInputs,
    TokenLoss,
    cispo,
    clipped,
    reinforce,
    sapo,
    sequence_clipped,
    vespo,
)

LN2, LN4 = math.log(2), math.log(4)
dapo = partial(clipped, clip_low=0.2, clip_high=0.28, clip_dual=None)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def inputs(
    logprobs: torch.Tensor,
    old: torch.Tensor,
    advantages: torch.Tensor,
    sequence_log_ratio: torch.Tensor | None = None,
    num_tokens: torch.Tensor | None = None,
) -> LossInputs:
    ratio = torch.zeros_like(old) if sequence_log_ratio is None else sequence_log_ratio
    return LossInputs(
        logprobs, old, advantages, ratio, torch.full_like(old, len(old)) if num_tokens is None else num_tokens
    )


def test_three_tokens_by_hand() -> None:
    """Ratios 2, 1/2 and 1 under clip 0.2 / 0.28."""
    old = tensor(-2.0, -1.0, -3.0)
    logprobs = (old + tensor(LN2, -LN2, 0.0)).requires_grad_()
    loss, ratio, held = dapo(inputs(logprobs, old, tensor(3.0, 3.0, 3.0)))
    assert ratio.tolist() == pytest.approx([2.0, 0.5, 1.0])
    # A > 0: the first is held at 1.28, the second is pushed up again: it is below the clip, min keeps the ratio
    assert loss.tolist() == pytest.approx([-1.28 * 3, -0.5 * 3, -3.0])
    assert held.tolist() == [True, False, False]
    loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([0.0, -0.5 * 3, -3.0])


def test_three_tokens_by_hand_with_a_negative_advantage() -> None:
    old = tensor(-2.0, -1.0, -3.0)
    logprobs = (old + tensor(LN2, -LN2, 0.0)).requires_grad_()
    loss, _, held = dapo(inputs(logprobs, old, tensor(-3.0, -3.0, -3.0)))
    # A < 0: the first goes on being pushed down, the second is held at 0.8
    assert loss.tolist() == pytest.approx([2.0 * 3, 0.8 * 3, 3.0])
    assert held.tolist() == [False, True, False]
    loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([2.0 * 3, 0.0, 3.0])


def test_the_dual_clip_bounds_what_a_negative_advantage_can_do() -> None:
    """Ratios 4 and 2 with A < 0, and 4 with A > 0, where only the clip holds."""
    old = tensor(-2.0, -1.0, -3.0)
    logprobs = (old + tensor(LN4, LN2, LN4)).requires_grad_()
    x = inputs(logprobs, old, tensor(-1.0, -1.0, 1.0))
    loss, ratio, held = clipped(x, clip_low=0.2, clip_high=0.2, clip_dual=3.0)
    assert ratio.tolist() == pytest.approx([4.0, 2.0, 4.0])
    assert loss.tolist() == pytest.approx([3.0, 2.0, -1.2])
    assert held.tolist() == [True, False, True]
    loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([0.0, 2.0, 0.0])


def test_a_dual_clip_within_the_clip_holds_too() -> None:
    """c = 1.1 < 1 + clip_high: it is the bound for A < 0 all the same, not 1.2."""
    old = tensor(-2.0)
    loss = clipped(inputs(old + LN2, old, tensor(-1.0)), clip_low=0.2, clip_high=0.2, clip_dual=1.1).loss
    assert loss.tolist() == pytest.approx([1.1])


def test_the_ratio_of_a_sample_has_its_value_and_the_gradient_of_the_geometric_mean() -> None:
    """Two tokens whose ratios are 4 and 1/2: s = sqrt(2); its gradient by each log-prob is s / 2."""
    old = tensor(-2.0, -1.0)
    logprobs = (old + tensor(LN4, -LN2)).requires_grad_()
    x = inputs(logprobs, old, tensor(3.0, 3.0), tensor(LN2 / 2, LN2 / 2))
    loss, ratio, held = sequence_clipped(x, clip_low=0.5, clip_high=0.5, clip_dual=None)
    s = math.sqrt(2)
    assert ratio.tolist() == pytest.approx([s, s])
    assert loss.tolist() == pytest.approx([-3 * s, -3 * s])
    assert held.tolist() == [False, False]
    loss.mean().backward()
    assert logprobs.grad.tolist() == pytest.approx([-3 * s / 2, -3 * s / 2])
    # One clip for the whole sample, though the second token's own ratio is far below it.
    above = sequence_clipped(x, clip_low=0.3, clip_high=0.3, clip_dual=None)
    assert above.loss.tolist() == pytest.approx([-3.9, -3.9])
    assert above.clipped.tolist() == [True, True]


def test_cispo_bounds_the_weight_and_keeps_every_gradient() -> None:
    old = tensor(-2.0, -1.0, -3.0)
    logprobs = (old + tensor(LN4, -LN4, 0.0)).requires_grad_()
    loss, ratio, bounded = cispo(inputs(logprobs, old, tensor(2.0, 2.0, -2.0)), clip_low=0.5, clip_high=1.0)
    assert ratio.tolist() == pytest.approx([4.0, 0.25, 1.0])
    assert bounded.tolist() == [True, True, False]
    assert loss.tolist() == pytest.approx([-2 * 2 * (LN4 - 2), -0.5 * 2 * (-1 - LN4), 2 * -3.0])
    loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-4.0, -1.0, 2.0])


def test_sapo_is_a_sigmoid_around_one() -> None:
    old = tensor(-2.0, -2.0, -2.0)
    logprobs = (old + tensor(LN2, LN2, 0.0)).requires_grad_()
    x = inputs(logprobs, old, tensor(1.0, -1.0, 3.0))
    loss, ratio, held = sapo(x, temperature_positive=1.0, temperature_negative=2.0)
    gate = [4 / (1 + math.exp(-1.0)), 2 / (1 + math.exp(-2.0))]
    assert loss.tolist() == pytest.approx([-gate[0], gate[1], -2.0 * 3])
    assert ratio.tolist() == pytest.approx([2.0, 2.0, 1.0])
    assert held.tolist() == [False, False, False]
    loss.sum().backward()
    slope = [4 * 2 * p * (1 - p) for p in (1 / (1 + math.exp(-1.0)), 1 / (1 + math.exp(-2.0)))]
    # On-policy the gradient is that of the plain ratio: A.
    assert logprobs.grad.tolist() == pytest.approx([-slope[0], slope[1], -3.0])


def test_vespo_weighs_with_the_whole_ratio_of_the_sample() -> None:
    """Mean log ratio ln 2 over two tokens: w = 4; and a sample of its own with w = 1."""
    old = tensor(-2.0, -1.0, -3.0)
    logprobs = (old + tensor(0.1, 0.2, 0.0)).requires_grad_()
    x = inputs(logprobs, old, tensor(1.0, -1.0, 0.5), tensor(LN2, LN2, 0.0), tensor(2.0, 2.0, 1.0))
    loss, ratio, _ = vespo(x, k_positive=2.0, lambda_positive=3.0, k_negative=3.0, lambda_negative=2.0)
    kernel = [16 * math.exp(3 * (1 - 4)), 64 * math.exp(2 * (1 - 4)), 1.0]
    assert ratio.tolist() == pytest.approx([4.0, 4.0, 1.0])
    assert loss.tolist() == pytest.approx([-kernel[0] * -1.9, kernel[1] * -0.8, -0.5 * -3.0])
    loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-kernel[0], kernel[1], -0.5])


def test_reinforce_has_no_ratio() -> None:
    old = tensor(-2.0, -1.0)
    logprobs = (old + tensor(LN4, -LN4)).requires_grad_()
    loss, ratio, held = reinforce(inputs(logprobs, old, tensor(2.0, -3.0)))
    assert loss.tolist() == pytest.approx([-2 * (LN4 - 2), 3 * (-1 - LN4)])
    assert (ratio.tolist(), held.tolist()) == (pytest.approx([4.0, 0.25]), [False, False])
    loss.sum().backward()
    assert logprobs.grad.tolist() == [-2.0, 3.0]


@pytest.mark.parametrize(
    "name, expected",
    [
        # tokens: sample 0 has -1.28 * 3 and -1.5 (advantage 3), sample 1 has +2 (advantage -2, ratio 1)
        ("sequence_mean", (-1.28 * 3 - 1.5) / (2 * 2) + 2 / (2 * 1)),
        ("constant", (-1.28 * 3 - 1.5 + 2) / (2 * 10)),
        ("token_mean", (-1.28 * 3 - 1.5 + 2) / 3),
        ("sequence_sum", (-1.28 * 3 - 1.5 + 2) / 2),
        # of one group each
        ("prompt_mean", (-1.28 * 3 - 1.5) / (2 * 2) + 2 / (2 * 1)),
    ],
)
def test_each_aggregation_of_three_tokens_in_two_samples(name: str, expected: float) -> None:
    old = tensor(-2.0, -1.0, -3.0)
    loss = dapo(inputs(old + tensor(LN2, -LN2, 0.0), old, tensor(3.0, 3.0, -2.0))).loss
    first, second = AGGREGATIONS[name]([2, 1], ["a", "b"], 10)
    assert float(loss @ tensor(first, first, second)) == pytest.approx(expected, rel=1e-12)


def test_the_weights_hold_every_denominator() -> None:
    groups = ["a", "b", "a"]
    assert {name: f([2, 6, 4], groups, 16) for name, f in AGGREGATIONS.items()} == {
        "token_mean": [1 / 12, 1 / 12, 1 / 12],
        "sequence_mean": [1 / 6, 1 / 18, 1 / 12],
        "prompt_mean": [1 / 12, 1 / 12, 1 / 12],
        "constant": [1 / 48, 1 / 48, 1 / 48],
        "sequence_sum": [1 / 3, 1 / 3, 1 / 3],
    }
    assert AGGREGATIONS["prompt_mean"]([2, 6, 2], groups, None) == [1 / 8, 1 / 12, 1 / 8]
    with pytest.raises(ValueError, match="needs max_sampled_tokens"):
        constant([2, 6], groups[:2], None)


def published(name: str, x: LossInputs) -> TokenLoss:
    return LOSSES[name](x)


@pytest.mark.parametrize("name", LOSSES)
def test_on_policy_every_loss_has_the_policy_gradient(name: str) -> None:
    logprobs, advantages = tensor(-1.0, -2.0, -0.5).requires_grad_(), tensor(1.0, -1.0, 2.0)
    loss, ratio, held = published(name, inputs(logprobs, logprobs.detach(), advantages))
    loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-1.0, 1.0, -2.0], rel=1e-15)
    assert (ratio.tolist(), held.tolist()) == ([1.0] * 3, [False] * 3)


@pytest.mark.parametrize("name", LOSSES)
def test_the_old_policy_is_a_constant(name: str) -> None:
    both = tensor(-1.0, -2.0).requires_grad_()
    published(name, inputs(both, both, tensor(1.0, -1.0))).loss.sum().backward()
    assert both.grad.tolist() == pytest.approx([-1.0, 1.0], rel=1e-15)


@pytest.mark.parametrize("name", LOSSES)
def test_a_huge_ratio_stays_finite_and_without_gradient(name: str) -> None:
    logprobs = torch.tensor([-1.0, -1000.0], requires_grad=True)
    ratios = torch.tensor([20.0, -20.0])
    x = inputs(logprobs, torch.tensor([-1000.0, -1.0]), torch.tensor([-1.0, 1.0]), ratios, torch.tensor([9.0, 9.0]))
    loss, ratio, _ = published(name, x)
    expected = [math.exp(20), 1e-8] if name == "vespo" else [math.exp(20), math.exp(-20)]
    assert ratio.tolist() == pytest.approx(expected)
    loss.sum().backward()
    assert loss.isfinite().all()
    # Where the ratio is a weight, its bound is what the gradient gets: it never is more than the cap.
    kept = {"cispo": [5.0, -math.exp(-20)], "reinforce": [1.0, -1.0], "vespo": [0.0, -math.exp(3) * 1e-16]}
    assert logprobs.grad.tolist() == pytest.approx(kept.get(name, [0.0, 0.0]))


RATIOS = tensor(LN4, -LN2, 0.05, -0.1, LN2)


@pytest.mark.parametrize("name", ["clipped", "sapo"])
def test_gradients_equal_finite_differences(name: str) -> None:
    old = tensor(-2.0, -1.0, -3.0, -0.5, -1.5)
    logprobs = (old + RATIOS).requires_grad_()
    advantages = tensor(1.5, -0.5, 2.0, -1.0, -3.0)

    def total(x: torch.Tensor) -> torch.Tensor:
        return published(name, inputs(x, old, advantages)).loss.sum()

    assert torch.autograd.gradcheck(total, (logprobs,), eps=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["cispo", "vespo", "reinforce"])
def test_the_gradient_of_a_weighted_logprob_is_the_weight(name: str) -> None:
    """loss = -weight A log p with a constant weight: the gradient is loss / log p."""
    old = tensor(-2.0, -1.0, -3.0, -0.5, -1.5)
    logprobs = (old + RATIOS).requires_grad_()
    x = inputs(logprobs, old, tensor(1.5, -0.5, 2.0, -1.0, -3.0), RATIOS.mean().expand(5))
    loss = published(name, x).loss
    loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx((loss / logprobs).tolist(), rel=1e-14)


def test_a_dual_clip_has_the_gradient_of_finite_differences() -> None:
    old = tensor(-2.0, -1.0, -3.0, -0.5, -1.5)
    logprobs = (old + RATIOS).requires_grad_()

    def total(x: torch.Tensor) -> torch.Tensor:
        dual = partial(clipped, clip_low=0.2, clip_high=0.28, clip_dual=1.5)
        return dual(inputs(x, old, tensor(-1.5, -0.5, 2.0, -1.0, -3.0))).loss.sum()

    assert torch.autograd.gradcheck(total, (logprobs,), eps=1e-6, atol=1e-8)
