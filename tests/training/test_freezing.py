"""What is frozen keeps its bits and costs nothing."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from agentgrpo.config.settings import LoraSettings
from agentgrpo.core.errors import ConfigError
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.training.adapters import add_adapter, freeze
from tests.grpo.tiny import exact_model, plain_gradient, random_samples, tiny_model
from tests.training.test_trainer import distance, gradient_of, make_trainer

TIED = ["model.freeze: the embeddings are also the output layer of this model; both are frozen"]
EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def names(model: PreTrainedModel) -> set[str]:
    return {n for n, _ in model.named_parameters()}


@pytest.mark.parametrize(
    ("tied", "given", "frozen", "notes"),
    [
        (False, ("embeddings",), {EMBEDDINGS}, []),
        (False, ("head",), {HEAD}, []),
        (False, ("embeddings", "head"), {EMBEDDINGS, HEAD}, []),
        (True, ("embeddings",), {EMBEDDINGS}, TIED),
        (True, ("head",), {EMBEDDINGS}, TIED),
        (True, ("lm_head.*",), {EMBEDDINGS}, TIED),
        (True, ("model.layers.0.self_attn.[qk]_norm.weight", "model.norm.*"), None, []),
        (True, (), set(), []),
    ],
)
def test_names_and_patterns(tied: bool, given: tuple[str, ...], frozen: set[str] | None, notes: list[str]) -> None:
    model = tiny_model(tied=tied)
    assert freeze(model, given) == notes
    norms = {f"model.layers.0.self_attn.{x}_norm.weight" for x in "qk"} | {"model.norm.weight"}
    assert {n for n, p in model.named_parameters() if not p.requires_grad} == (norms if frozen is None else frozen)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("embedding",), r"has 'embedding', which names no weights; allowed are .* Did you mean 'embeddings'\?"),
        (("model.layers.7.*",), r"has 'model.layers.7.\*', which names no weights"),
        (("*",), r"model.freeze=\[\*\] leaves nothing to train; freeze fewer weights"),
        (("embeddings", "model.*"), r"leaves nothing to train"),
    ],
)
def test_names_that_cannot_be_meant(given: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        freeze(tiny_model(), given)


def test_with_an_adapter_nothing_else_trains_anyway() -> None:
    model = tiny_model()
    add_adapter(model, LoraSettings(rank=2), base="base", seed=0)
    with pytest.raises(ConfigError, match=r"model.freeze=\[head\] with model.lora: nothing but the adapter trains"):
        freeze(model, ["head"])
    assert freeze(model, []) == []


@pytest.mark.parametrize(
    "given",
    [
        ("embeddings",),
        ("head",),
        ("embeddings", "head"),
        ("model.layers.0.*", "embeddings"),
        ("*.self_attn.*", "*norm*"),
        ("model.*",),  # the head alone trains
        ("lm_head.*", "model.layers.*", "model.norm.*"),  # the embeddings alone
    ],
    ids=" ".join,
)
def test_the_rest_has_the_gradient_of_plain_autograd_and_what_is_frozen_keeps_its_bits(given: tuple[str, ...]) -> None:
    samples = random_samples()
    model = exact_model(tied=False)
    freeze(model, given)
    expected = plain_gradient(model, samples)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    trainer = make_trainer(model, Algorithm(aggregation="token_mean", loss_args={"clip_low": 1.0, "clip_high": 1e6}))
    assert distance(gradient_of(trainer, samples), expected) < 1e-12
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == expected.keys() == {n for n, p in model.named_parameters() if p.requires_grad}
    assert all(p.grad is None for p in model.parameters())
    assert {n.rpartition(".")[0] for n in trainer.optimizer.state_tensors()} == moved


def test_weight_decay_leaves_it_alone() -> None:
    from agentgrpo.training.optimizer import AdamW

    model = tiny_model(tied=False)
    freeze(model, ["embeddings"])
    before = model.get_input_embeddings().weight.detach().clone()
    optimizer = AdamW(model=model, lr=0.1, weight_decay=0.5, warmup_steps=0)
    trainer = make_trainer(model, optimizer=optimizer)
    trainer.update(random_samples(), step=0)
    assert torch.equal(model.get_input_embeddings().weight, before)
    assert not torch.equal(model.get_output_embeddings().weight, tiny_model(tied=False).get_output_embeddings().weight)
