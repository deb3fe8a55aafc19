"""The output layer against softmax and autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from agentgrpo.engines.vocabulary import Vocabulary
from agentgrpo.training import head as module
from agentgrpo.training.head import Head

TARGETS = torch.tensor([3, 0, 49, 3, 7])
FACTORS = torch.tensor([1.5, -2.0, 0.0, 0.25, 1.0], dtype=torch.float64)


def layer(dtype: torch.dtype, *, bias: bool = False) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Linear(16, 50, bias=bias, dtype=torch.float64).to(dtype)


def hidden(dtype: torch.dtype) -> Tensor:
    return torch.randn(5, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype) * 4


def by_autograd(
    linear: nn.Linear, states: Tensor, temperature: float, entropy_factors: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(log-probs, entropy, gradient of sum(FACTORS * log-probs + entropy_factors * entropy) with respect to the
    states); the layer's is added."""
    leaf = states.clone().requires_grad_()
    distribution = torch.distributions.Categorical(logits=linear(leaf) / temperature)
    logprobs = distribution.log_prob(TARGETS)
    loss = FACTORS.to(logprobs.dtype) @ logprobs
    if entropy_factors is not None:
        loss = loss + entropy_factors @ distribution.entropy()
    loss.backward()
    assert leaf.grad is not None
    return logprobs.detach(), distribution.entropy().detach(), leaf.grad


def by_head(
    linear: nn.Linear,
    states: Tensor,
    temperature: float,
    chunk_tokens: int,
    dtype: torch.dtype,
    entropy_factors: Tensor | None = None,
) -> list[Tensor]:
    head = Head(linear, temperature=temperature, chunk_tokens=chunk_tokens, dtype=dtype)
    parts = []
    for chunk in head.chunks(len(states)):
        scores = head.score(states[chunk], TARGETS[chunk])
        of_entropy = None if entropy_factors is None else entropy_factors[chunk].to(dtype)
        parts.append((*scores, head.backward(FACTORS[chunk].to(dtype), of_entropy)))
    return [torch.cat(x) for x in zip(*parts, strict=True)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk_tokens", [1, 3, 100])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-13), (torch.float32, 1e-6)])
def test_scores_and_gradients_are_those_of_autograd(
    bias: bool, temperature: float, chunk_tokens: int, dtype: torch.dtype, tolerance: float
) -> None:
    ours, plain = layer(dtype, bias=bias), layer(torch.float64, bias=bias)
    plain.load_state_dict(ours.double().state_dict())
    ours.to(dtype)
    expected = by_autograd(plain, hidden(dtype).double(), temperature)
    found = by_head(ours, hidden(dtype), temperature, chunk_tokens, dtype)
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == dtype
        assert float((x.double() - y).norm() / y.norm()) < tolerance
    for p, q in zip(ours.parameters(), plain.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert float((p.grad.double() - q.grad).norm() / q.grad.norm()) < tolerance


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk_tokens", [1, 3, 100])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-13), (torch.float32, 2e-6)])
def test_the_gradient_of_the_entropy_is_that_of_autograd(
    monkeypatch: pytest.MonkeyPatch,
    bias: bool,
    temperature: float,
    chunk_tokens: int,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    monkeypatch.setitem(module.TILE_BYTES, "cpu", 450)  # two rows at a time in float32, one in float64
    factors = torch.tensor([0.3, -1.0, 2.0, 0.0, 0.5], dtype=torch.float64)
    ours, plain = layer(dtype, bias=bias), layer(torch.float64, bias=bias)
    plain.load_state_dict(ours.double().state_dict())
    ours.to(dtype)
    expected = by_autograd(plain, hidden(dtype).double(), temperature, factors)
    found = by_head(ours, hidden(dtype), temperature, chunk_tokens, dtype, factors)
    for x, y in zip(found, expected, strict=True):
        assert float((x.double() - y).norm() / y.norm()) < tolerance
    for p, q in zip(ours.parameters(), plain.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert float((p.grad.double() - q.grad).norm() / q.grad.norm()) < tolerance


def test_the_entropy_of_a_certain_token_has_a_finite_gradient() -> None:
    """Far from the top exp() is 0, and its logarithm is not needed."""
    linear = layer(torch.float32)
    head = Head(linear, dtype=torch.float32)
    head.score(hidden(torch.float32) * 1e4, TARGETS)
    gradient = head.backward(torch.zeros(5), torch.ones(5))
    torch.testing.assert_close(gradient, torch.zeros(5, 16), rtol=0, atol=1e-4)


def test_the_gradient_is_added_to_what_is_there() -> None:
    linear = layer(torch.float64)
    by_head(linear, hidden(torch.float64), 1.0, 100, torch.float64)
    once = linear.weight.grad.clone()  # type: ignore[union-attr]
    by_head(linear, hidden(torch.float64), 1.0, 2, torch.float64)
    torch.testing.assert_close(linear.weight.grad, 2 * once, rtol=1e-12, atol=1e-14)


def test_a_frozen_layer_gets_no_gradient_and_passes_it_on() -> None:
    linear = layer(torch.float64).requires_grad_(False)
    expected = by_autograd(layer(torch.float64), hidden(torch.float64), 1.0)
    torch.testing.assert_close(by_head(linear, hidden(torch.float64), 1.0, 2, torch.float64), list(expected))
    assert linear.weight.grad is None


def test_the_size_of_a_tile_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    def results() -> list[Tensor]:
        linear = layer(torch.float32)
        found = by_head(linear, hidden(torch.float32), 0.7, 4, torch.float32)
        return [*found, linear.weight.grad]  # type: ignore[list-item]

    whole = results()
    for size in (1, 450):
        monkeypatch.setitem(module.TILE_BYTES, "cpu", size)
        assert all(torch.equal(a, b) for a, b in zip(results(), whole, strict=True))


def test_logits_of_any_size_have_finite_scores() -> None:
    linear = layer(torch.float32)
    states = hidden(torch.float32) * 1e4
    scores = Head(linear, dtype=torch.float32).score(states, TARGETS)
    assert scores.logprobs.isfinite().all()
    assert float(scores.logprobs.min()) < -1e3
    torch.testing.assert_close(scores.entropy, torch.zeros(5), rtol=0, atol=1e-4)


@pytest.mark.parametrize("how", ["weights", "autocast"])
def test_in_bfloat16_only_the_products_are(how: str) -> None:
    exact = by_autograd(layer(torch.float64), hidden(torch.float64), 0.8)
    linear = layer(torch.float32)
    states = hidden(torch.float32)
    if how == "weights":
        linear.bfloat16()
        states = states.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        logprobs, entropy, gradient = by_head(linear, states, 0.8, 2, torch.float32)
    assert (logprobs.dtype, entropy.dtype, gradient.dtype) == (torch.float32, torch.float32, states.dtype)
    assert linear.weight.grad is not None
    assert linear.weight.grad.dtype == linear.weight.dtype
    for x, y in zip((logprobs, entropy, gradient), exact, strict=True):
        assert 1e-5 < float((x.double() - y).norm() / y.norm()) < 2e-2


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.01])
@pytest.mark.parametrize("before", [False, True])
def test_rows_that_stand_for_no_token_have_no_probability_and_no_gradient(
    bias: bool, temperature: float, before: bool
) -> None:
    """Against autograd with -inf in their places; of entropy, too. before: the layer has a gradient already."""
    vocabulary, masked = Vocabulary(50, 50 - 10, (5, 20), ()), torch.zeros(50)
    masked[[*vocabulary.unused]] = -torch.inf
    targets, factors = torch.tensor([3, 0, 39, 3, 7]), torch.tensor([0.3, -1.0, 2.0, 0.0, 0.5], dtype=torch.float64)
    ours, plain = layer(torch.float64, bias=bias), layer(torch.float64, bias=bias)
    for parameter in (*ours.parameters(), *plain.parameters()) if before else ():
        parameter.grad = torch.ones_like(parameter)
    leaf = hidden(torch.float64).requires_grad_()
    distribution = torch.distributions.Categorical(logits=(plain(leaf) + masked) / temperature)
    entropy = -(distribution.probs * distribution.logits.clamp(min=-1e9)).sum(-1)
    (FACTORS @ distribution.log_prob(targets) + factors @ entropy).backward()
    head = Head(ours, temperature=temperature, dtype=torch.float64, vocabulary=vocabulary)
    scores = head.score(leaf.detach(), targets)
    gradient = head.backward(FACTORS, factors)
    assert leaf.grad is not None
    for found, expected in (
        (scores.logprobs, distribution.log_prob(targets).detach()),
        (scores.entropy, entropy.detach()),
        (gradient, leaf.grad),
        *((p.grad, q.grad) for p, q in zip(ours.parameters(), plain.parameters(), strict=True)),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    assert ours.weight.grad is not None
    assert set(ours.weight.grad[[*vocabulary.unused]].flatten().tolist()) == {float(before)}
