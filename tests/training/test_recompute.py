"""Activation checkpointing: the same gradient to the bit, from less that was kept."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agentgrpo.core.errors import ConfigError
from agentgrpo.grpo.aggregation import token_mean
from agentgrpo.grpo.packing import PackedBatch, pack
from agentgrpo.training import attention
from agentgrpo.training.policy import Policy
from tests.grpo.tiny import exact_model, random_samples, tiny_model, tiny_tokenizer
from tests.training.test_trainer import gradient_of, make_trainer, same_bits


@pytest.fixture(params=[0, 192], ids=["long rows", "short rows"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of the packed attention, the one that narrows the last layer too."""
    monkeypatch.setattr(attention, "SHORT", request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_the_gradient_is_the_same_to_the_bit(family: str) -> None:
    plain, again = (
        gradient_of(
            make_trainer(tiny_model(family, kv_heads=2), activation_checkpointing=on, tokens_per_micro_batch=40),
            random_samples(),
        )
        for on in (False, True)
    )
    assert same_bits(plain, again)


def kept(num_layers: int, *, recompute: bool) -> float:
    """Numbers per packed token that autograd keeps for the backward pass."""
    model = exact_model()
    del model.model.layers[num_layers:]
    model.config.num_hidden_layers = num_layers
    trainer = make_trainer(model)
    [batch] = pack(random_samples(), tokens_per_batch=1000, token_weights=token_mean)
    sizes = []

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(0 if isinstance(tensor, torch.nn.Parameter) else tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = trainer.policy.hidden_states(batch, recompute=recompute)
    assert states.requires_grad
    return sum(sizes) / len(batch.input_ids)


@pytest.mark.usefixtures("way")
def test_a_layer_keeps_its_input_and_nothing_else() -> None:
    assert kept(2, recompute=False) - kept(1, recompute=False) > 10 * 32
    assert kept(2, recompute=True) - kept(1, recompute=True) == 32


def test_what_is_longer_than_a_micro_batch_is_computed_twice_where_nobody_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[bool, bool]] = []
    states = Policy.hidden_states

    def watched(policy: Policy, batch: PackedBatch, *, recompute: bool = False) -> Tensor:
        seen.append((len(batch.input_ids) > 12, recompute))
        return states(policy, batch, recompute=recompute)

    monkeypatch.setattr(Policy, "hidden_states", watched)
    make_trainer(tiny_model(), tokens_per_micro_batch=12).update(random_samples(), step=0)
    assert {*seen} == {(True, True), (False, False)}


def test_the_model_is_left_as_it_was() -> None:
    trainer = make_trainer(tiny_model(), activation_checkpointing=True)
    trainer.update(random_samples(), step=0)
    layers = trainer.policy.model.model.layers
    assert ["forward" in vars(layer) for layer in layers] == [False, False]
    assert trainer.policy.model.config._attn_implementation != attention.NAME
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in trainer.policy.model.modules())


def test_a_model_without_a_list_of_layers_is_refused() -> None:
    policy = Policy(model=tiny_model(), tokenizer=tiny_tokenizer())
    [batch] = pack(random_samples(), tokens_per_batch=1000, token_weights=token_mean)
    policy.model.model.layers = torch.nn.Sequential(*policy.model.model.layers)
    with pytest.raises(ConfigError, match="activation_checkpointing=true with Qwen3ForCausalLM"):
        policy.hidden_states(batch, recompute=True)
