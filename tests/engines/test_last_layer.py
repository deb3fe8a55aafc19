"""A last layer that computes only the rows that are read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from agentgrpo.engines.kernels.last_layer import PER_TOKEN, last_layer, last_layer_rows
from tests.engines.tiny import model

IDS = torch.tensor([[5, 9, 2, 7, 7, 1, 30, 4]])
READ = torch.tensor([2, 3, 7])


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_the_rows_that_are_read_and_their_gradients_are_the_same(family: str) -> None:
    policy = model(family).double()

    def outcome() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        policy.zero_grad()
        states = policy.base_model(input_ids=IDS, use_cache=False).last_hidden_state[0, READ]
        (states * torch.arange(states.numel()).view(states.shape)).sum().backward()
        return states.detach(), {n: p.grad.clone() for n, p in policy.base_model.named_parameters()}

    whole, gradients = outcome()
    with last_layer_rows(policy, READ):
        narrow, narrow_gradients = outcome()
    torch.testing.assert_close(narrow, whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(narrow_gradients, gradients, rtol=1e-10, atol=1e-10)


def test_only_those_rows_run_and_only_inside_the_block() -> None:
    policy = model()
    seen: dict[str, list[int]] = {name: [] for name in PER_TOKEN}
    for name in PER_TOKEN:
        module = last_layer(policy).get_submodule(name)
        inner = module if isinstance(module, nn.Linear) else module.gate_proj
        inner.register_forward_hook(lambda _, args, __, name=name: seen[name].append(args[0].shape[1]))
    first = policy.base_model.layers[0].mlp.gate_proj
    first.register_forward_hook(lambda _, args, __: seen.setdefault("first layer", []).append(args[0].shape[1]))
    with last_layer_rows(policy, READ):
        policy.base_model(input_ids=IDS, use_cache=False)
    policy.base_model(input_ids=IDS, use_cache=False)
    assert seen == {"self_attn.q_proj": [3, 8], "self_attn.o_proj": [3, 8], "mlp": [3, 8], "first layer": [8, 8]}


@pytest.mark.parametrize("missing", PER_TOKEN)
def test_a_model_built_otherwise_computes_everything(missing: str) -> None:
    policy = model()
    parent, _, name = missing.rpartition(".")
    delattr(last_layer(policy).get_submodule(parent), name)
    with last_layer_rows(policy, READ):
        assert not any(m._forward_pre_hooks for m in policy.modules())


def test_the_hooks_are_gone_after_an_error() -> None:
    policy = model()
    with pytest.raises(IndexError), last_layer_rows(policy, READ):
        policy.base_model(input_ids=torch.tensor([[10**6]]))
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in policy.modules())
