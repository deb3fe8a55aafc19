"""KL estimators: values, gradients, and what they estimate, by enumeration."""

from __future__ import annotations

import math

import pytest
import torch

from agentgrpo.grpo.kl import KL_ESTIMATORS

LN2 = math.log(2)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    "name, values, gradients",
    [
        # d = ln 2, -ln 2, 0
        ("k1", [LN2, -LN2, 0.0], [1.0, 1.0, 1.0]),
        ("k2", [LN2**2 / 2, LN2**2 / 2, 0.0], [LN2, -LN2, 0.0]),
        ("k3", [0.5 - 1 + LN2, 2 - 1 - LN2, 0.0], [0.5, -1.0, 0.0]),
    ],
)
def test_three_tokens_by_hand(name: str, values: list[float], gradients: list[float]) -> None:
    reference = tensor(-1.0, -2.0, -3.0)
    logprobs = (reference + tensor(LN2, -LN2, 0.0)).requires_grad_()
    kl = KL_ESTIMATORS[name](logprobs, reference)
    assert kl.tolist() == pytest.approx(values, abs=1e-15)
    kl.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx(gradients, abs=1e-15)


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_the_kl_to_itself_is_exactly_zero_and_no_gradient_reaches_the_reference(name: str) -> None:
    policy = tensor(-1.0, -2.0).requires_grad_()
    kl = KL_ESTIMATORS[name](policy, policy)
    assert kl.tolist() == [0.0, 0.0]
    kl.sum().backward()
    assert policy.grad.tolist() == ([1.0, 1.0] if name == "k1" else [0.0, 0.0])


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_gradients_equal_finite_differences(name: str) -> None:
    reference = tensor(-1.0, -2.0, -3.0, -4.0)
    logprobs = (reference + tensor(0.7, -1.3, 0.01, 2.0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: KL_ESTIMATORS[name](x, reference).sum(), (logprobs,))


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_a_huge_ratio_stays_finite(name: str) -> None:
    logprobs = torch.tensor([-1.0, -1000.0], requires_grad=True)
    kl = KL_ESTIMATORS[name](logprobs, torch.tensor([-1000.0, -1.0]))
    kl.sum().backward()
    assert kl.isfinite().all()
    assert logprobs.grad.tolist() == [0.0, 0.0]


def test_what_each_one_estimates_over_a_whole_distribution() -> None:
    """The table in the module's docstring, by summing over all four outcomes of a categorical policy."""
    logits = tensor(0.3, -1.0, 0.8, 0.1).requires_grad_()
    reference = tensor(-0.2, 0.5, 0.4, -1.0).log_softmax(0)

    def expected(name: str) -> tuple[float, list[float]]:
        logprobs = logits.log_softmax(0)
        average = logprobs.exp().detach() @ KL_ESTIMATORS[name](logprobs, reference)
        return average.item(), torch.autograd.grad(average, logits)[0].tolist()

    logprobs = logits.log_softmax(0)
    reverse = logprobs.exp() @ (logprobs - reference)
    forward = reference.exp() @ (reference - logprobs)
    reverse_gradient = torch.autograd.grad(reverse, logits, retain_graph=True)[0].tolist()
    forward_gradient = torch.autograd.grad(forward, logits)[0].tolist()

    assert expected("k1")[0] == pytest.approx(reverse.item())
    assert expected("k1")[1] == pytest.approx([0.0] * 4, abs=1e-15)
    assert expected("k2")[0] != pytest.approx(reverse.item(), rel=0.01)
    assert expected("k2")[1] == pytest.approx(reverse_gradient)
    assert expected("k3")[0] == pytest.approx(reverse.item())
    assert expected("k3")[1] == pytest.approx(forward_gradient)
