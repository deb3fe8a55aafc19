"""An engine with weights of its own: what is trained in the meantime does not reach it until it is told."""

from __future__ import annotations

import asyncio
import threading

import torch
from transformers import PreTrainedModel

from tests.engines.tiny import bits, engine, model, play_all, prompt

EPISODES = [(0, 0), (0, 1), (1, 0), (2, 0)]


def change(policy: PreTrainedModel) -> None:
    with torch.no_grad():
        for p in policy.parameters():
            if p.requires_grad:
                p.mul_(1.25)


async def test_it_samples_from_what_it_loaded_last() -> None:
    policy = model("qwen2")
    own, old = engine(policy, own_weights=True), bits(await play_all(engine(model("qwen2")), EPISODES))
    change(policy)
    assert bits(await play_all(own, EPISODES)) == old
    scores = await own.score(prompt(1))
    await own.load_weights(1)
    new = bits(await play_all(engine(policy), EPISODES))
    assert bits(await play_all(own, EPISODES)) == new != old
    assert await own.score(prompt(1)) == await engine(policy).score(prompt(1)) != scores
    assert own.policy_version == 1


async def test_without_its_own_it_samples_from_the_policy_itself() -> None:
    policy = model("qwen2")
    shared, old = engine(policy), bits(await play_all(engine(model("qwen2")), EPISODES))
    change(policy)
    assert bits(await play_all(shared, EPISODES)) != old


async def test_what_is_frozen_is_not_kept_twice() -> None:
    policy = model("qwen2")
    for name, p in policy.named_parameters():
        p.requires_grad_("layers.1." in name)
    own = engine(policy, own_weights=True)
    copied = dict(own._model.named_parameters())
    assert copied.keys() == dict(policy.named_parameters()).keys()
    assert {n for n, p in policy.named_parameters() if copied[n] is not p} == {n for n in copied if "layers.1." in n}
    change(policy)
    await own.load_weights(1)
    assert bits(await play_all(own, EPISODES)) == bits(await play_all(engine(policy), EPISODES))


async def test_a_policy_that_computes_gradients_in_another_thread_changes_no_bit() -> None:
    policy = model("qwen2")
    own, alone = engine(policy, own_weights=True), bits(await play_all(engine(model("qwen2")), EPISODES))
    begun, done = threading.Event(), threading.Event()

    def train() -> int:
        rounds = 0
        while not done.is_set():
            ids = torch.arange(40)[None] + rounds % 100
            policy(input_ids=ids, labels=ids).loss.backward()
            change(policy)
            begun.set()
            rounds += 1
        return rounds

    training = asyncio.get_running_loop().run_in_executor(None, train)
    try:
        assert await asyncio.to_thread(begun.wait, 30)
        together = bits(await play_all(own, EPISODES))
    finally:
        done.set()
    assert await training > 1
    assert together == alone
