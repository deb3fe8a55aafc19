"""Linear layers with packed weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from agentgrpo.engines.kernels.linear import LEAST_WEIGHTS, PackedLinears, packed, suits


def layer(inputs: int = 512, outputs: int = 512, *, bias: bool = True, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 512), (37, 512), (1, 40, 512)])
@torch.inference_mode()
def test_computes_what_the_layer_does(bias: bool, shape: tuple[int, ...]) -> None:
    linear, x = layer(outputs=1000, bias=bias), torch.randn(shape)
    found = packed(linear)(x)
    assert found.shape == (*shape[:-1], 1000)
    torch.testing.assert_close(found, linear(x), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_a_rows_bits_depend_on_nothing_else() -> None:
    forward, x = packed(layer(outputs=1000)), torch.randn(70, 512)
    whole = forward(x)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for n in (1, 2, 3, 5, 8, 31, 64):
                assert torch.equal(forward(x[:n]), whole[:n]), (threads, n)
    finally:
        torch.set_num_threads(before)


def test_which_layers_are_packed() -> None:
    assert suits(layer(512, LEAST_WEIGHTS // 512))
    assert not suits(layer(512, LEAST_WEIGHTS // 512 - 1))
    assert not suits(layer().double())
    assert not suits(layer().bfloat16())
    assert not suits(nn.Embedding(1000, 512))
    assert not suits(nn.Bilinear(64, 64, 64))


@torch.inference_mode()
def test_the_model_runs_packed_inside_and_as_ever_outside() -> None:
    model, x = nn.Sequential(layer(), nn.Linear(512, 4), layer(4, 512)), torch.randn(3, 512)
    plain, packs, calls = model(x), PackedLinears(model), []
    model[0].register_forward_hook(lambda module, _, __: calls.append("forward" in vars(module)))
    with packs.in_use():
        torch.testing.assert_close(model(x), plain, rtol=1e-5, atol=1e-5)
        assert ["forward" in vars(m) for m in model] == [True, False, False]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), packs.in_use():
        model[1](torch.randn(3, 4))
    assert torch.equal(model(x), plain)
    assert calls == [True, False]


@torch.inference_mode()
def test_new_weights_are_seen_after_drop() -> None:
    model, x = nn.Sequential(layer()), torch.randn(3, 512)
    packs = PackedLinears(model)
    with packs.in_use():
        before = model(x)
    model[0].weight.mul_(2)
    with packs.in_use():
        assert torch.equal(model(x), before)
    packs.drop()
    with packs.in_use():
        torch.testing.assert_close(model(x) - model[0].bias, 2 * (before - model[0].bias), rtol=1e-4, atol=1e-5)
