"""One process, several, and several with their layers shared out: the same training."""

from __future__ import annotations

import random
import re
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from agentgrpo.config.hardware import Launch
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import TrainingSample
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.policy import Policy
from agentgrpo.training.process_group import Alone, ProcessGroup
from agentgrpo.training.processes import _buckets, processes
from agentgrpo.training.reference import frozen_reference
from agentgrpo.training.sharding import fill, gathered, shard
from agentgrpo.training.trainer import Trainer
from tests.grpo.tiny import VOCABULARY, tiny_model, tiny_tokenizer, training_sample
from tests.training.several import on

STEPS = 20


class Trained(NamedTuple):
    updates: list[dict[str, float]]
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]


def uneven_samples(step: int) -> list[TrainingSample]:
    """Groups of one to five samples of very different lengths."""
    rng = random.Random(step)

    def tokens(low: int, high: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high))]

    samples = []
    for g in range(rng.randint(1, 4)):
        prompt = tokens(2, 9)
        for i in range(rng.randint(1, 5)):
            parts = ((prompt, 0), (tokens(1, 9), 1), (tokens(1, 6), 0), (tokens(1, 4), 1))
            samples.append(training_sample(*parts, group=f"g{g}", index=i, advantage=rng.uniform(-2, 2)))
    return samples


def train(
    world: ProcessGroup,
    strategy: str,
    tokens: int,
    algorithm: Algorithm,
    steps: range = range(STEPS),
    before: Trained | None = None,
    mixed_precision: str = "no",
) -> Trained:
    """`steps` of a training; before: what the ones before them came to, be it on other processes."""
    model = tiny_model(tied=False)
    policy = Policy(model=model, tokenizer=tiny_tokenizer())
    reference = frozen_reference(policy) if algorithm.needs_reference else None
    if strategy == "fsdp":
        shard(model, world.size)
    optimizer = AdamW(model=model, lr=1e-3, warmup_steps=2)
    if before is not None:
        optimizer.load_state_tensors(before.optimizer)
        for name, parameter in model.named_parameters():
            fill(parameter, before.weights[name])
    trainer = Trainer(
        policy=policy,
        reference=reference,
        optimizer=optimizer,
        algorithm=algorithm,
        total_steps=STEPS,
        tokens_per_micro_batch=tokens,
        mixed_precision=mixed_precision,
        world=world,
    )
    updates = [trainer.update(uneven_samples(step), step=step).tags() for step in steps]
    return Trained(
        [*(before.updates if before else ()), *updates],
        gathered(model.state_dict(), keep=True),
        gathered(optimizer.state_tensors(), keep=True),
    )


def difference(a: Trained, b: Trained) -> float:
    """The largest of all losses, other measurements and weights. (Of a prompt that is shared by samples of two
    batches each forwards a copy.)"""
    assert a.weights.keys() == b.weights.keys()
    of_weights = [float((a.weights[n] - b.weights[n]).abs().max()) for n in a.weights]
    of_tags = [
        abs(x[tag] - y[tag])
        for x, y in zip(a.updates, b.updates, strict=True)
        for tag in x
        if tag != "tokens/forwarded"
    ]
    return max(*of_weights, *of_tags)


ON_POLICY = Algorithm(aggregation="token_mean")
OFF_POLICY = Algorithm(aggregation="token_mean", num_epochs=2, mini_batches=2, kl_coef=0.1)
BATCHES = (64, 24)
"""Input tokens: one or two batches a step, or several, of which a process has none now and then."""


@pytest.mark.parametrize(
    ("strategy", "algorithm"),
    [
        pytest.param("ddp", ON_POLICY, id="ddp-on-policy", marks=pytest.mark.slow),
        pytest.param("fsdp", ON_POLICY, id="fsdp-on-policy", marks=pytest.mark.slow),
        pytest.param("ddp", OFF_POLICY, id="ddp-off-policy", marks=pytest.mark.slow),
        pytest.param("fsdp", OFF_POLICY, id="fsdp-off-policy", marks=pytest.mark.slow),
    ],
)
def test_two_processes_train_as_one_whatever_the_batches(strategy: str, algorithm: Algorithm) -> None:
    alone = train(Alone(), "ddp", BATCHES[0], algorithm)
    for tokens in BATCHES:
        first, second = on(2, train, strategy, tokens, algorithm)
        assert difference(first, second) == 0.0
        assert difference(alone, first) < 1e-5


@pytest.mark.slow
def test_from_two_sharded_to_one_to_two() -> None:
    whole = train(Alone(), "ddp", BATCHES[0], OFF_POLICY)
    first = on(2, train, "fsdp", BATCHES[0], OFF_POLICY, range(7))[1]
    second = train(Alone(), "ddp", BATCHES[0], OFF_POLICY, range(7, 14), first)
    third = on(2, train, "ddp", BATCHES[0], OFF_POLICY, range(14, STEPS), second)[0]
    assert difference(whole, third) < 1e-5


@pytest.mark.parametrize("strategy", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
def test_products_in_half_precision(strategy: str) -> None:
    """The same up to its rounding, of which the weights themselves have none."""
    alone = train(Alone(), "ddp", BATCHES[0], ON_POLICY, range(3), None, "bf16")
    exact = train(Alone(), "ddp", BATCHES[0], ON_POLICY, range(3))
    first, second = on(2, train, strategy, BATCHES[0], ON_POLICY, range(3), None, "bf16")
    assert difference(first, second) == 0.0
    assert difference(alone, first) < difference(alone, exact) < 0.1
    assert {t.dtype for t in first.weights.values()} == {torch.float32}


@pytest.mark.parametrize(
    "device, text",
    [
        ("cuda:1", "hardware.device=cuda:1 of 2 processes; allowed are cpu and cuda, with one GPU per process"),
        ("cuda", "hardware.device=cuda: torch finds 0 GPUs here, and process 1 of this machine needs its own; start "),
    ],
)
def test_devices_that_processes_cannot_have(monkeypatch: pytest.MonkeyPatch, device: str, text: str) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match=re.escape(text)), processes(Launch(1, 2, 1), device=device, timeout_s=1.0):
        pass


def test_one_process_is_alone() -> None:
    with processes(Launch(), device="cpu", timeout_s=1.0) as world:
        assert (type(world), world.rank, world.size, world.gather(3)) == (Alone, 0, 1, [3])


def adds_up(world: ProcessGroup) -> list[Tensor]:
    tensors = [torch.full((2, 3), 1.0 + world.rank), torch.ones(5, dtype=torch.float64), torch.ones(4, 4).T[1:]]
    world.add_up(tensors)
    return tensors


def test_tensors_of_every_kind_are_added_up_in_place() -> None:
    expected = [torch.full((2, 3), 6.0), torch.full((5,), 3.0, dtype=torch.float64), torch.full((3, 4), 3.0)]
    for found in on(3, adds_up):
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, expected, strict=True))


def test_a_bucket_is_of_one_kind_and_not_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgrpo.training.processes.BUCKET_BYTES", 16)
    tensors = [torch.ones(n) for n in (2, 2, 1, 9, 1)] + [torch.ones(1, dtype=torch.float64)]
    assert [[len(t) for t in bucket] for bucket in _buckets(tensors)] == [[2, 2], [1], [9], [1], [1]]
