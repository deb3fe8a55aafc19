"""The reference is a copy that follows the policy by its rule only."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agentgrpo.config.settings import LoraSettings
from agentgrpo.core.errors import CheckpointError
from agentgrpo.training.adapters import adapter_tensors, add_adapter
from agentgrpo.training.policy import Policy
from agentgrpo.training.reference import Reference, frozen_reference, reference_state
from tests.grpo.tiny import random_samples, tiny_model, tiny_tokenizer


def tiny_policy() -> Policy:
    return Policy(model=tiny_model(), tokenizer=tiny_tokenizer())


def add_to_all(policy: Policy, amount: float) -> None:
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(amount)


def weights(policy: Policy) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in policy.model.named_parameters()}


def test_it_scores_like_the_policy_did_and_does_not_follow_it() -> None:
    policy = tiny_policy()
    before = [x for _, x in policy.logprobs(random_samples())]
    policy.model(input_ids=torch.tensor([[1, 2]])).logits.sum().backward()
    reference = frozen_reference(policy)
    with torch.no_grad():
        for p in policy.model.parameters():
            p.mul_(1.1)
    assert all(torch.equal(x, y) for (_, x), y in zip(reference.logprobs(random_samples()), before, strict=True))
    assert not any(torch.equal(x, y) for (_, x), y in zip(policy.logprobs(random_samples()), before, strict=True))


def test_it_holds_no_gradients_and_needs_none() -> None:
    policy = tiny_policy()
    policy.model(input_ids=torch.tensor([[1, 2]])).logits.sum().backward()
    reference = frozen_reference(policy)
    assert all(p.grad is None and not p.requires_grad for p in reference.model.parameters())
    assert all(p.grad is not None and p.requires_grad for p in policy.model.parameters())
    assert not reference.model.training


def test_what_does_not_train_is_not_copied() -> None:
    policy = tiny_policy()
    policy.model.get_input_embeddings().weight.requires_grad_(False)
    reference = frozen_reference(policy)
    shared = {n for n, p in reference.model.named_parameters() if p is dict(policy.model.named_parameters())[n]}
    assert shared == {"model.embed_tokens.weight"}
    assert reference.model.lm_head.weight is policy.model.lm_head.weight


def test_a_frozen_reference_stays_and_is_not_saved() -> None:
    policy = tiny_policy()
    reference = Reference(policy)
    before = weights(policy)
    add_to_all(policy, 1.0)
    reference.after_update(0)
    assert all(torch.equal(p, before[n]) for n, p in weights(reference.policy).items())
    assert reference_state(reference) == reference_state(None) == {}


def test_of_a_run_that_goes_on_it_is_the_start() -> None:
    policy, start = tiny_policy(), tiny_policy()
    add_to_all(policy, 1.0)
    reference = Reference(policy, start=start)
    assert all(torch.equal(p, weights(start)[n]) for n, p in weights(reference.policy).items())


def test_the_moving_average_by_hand() -> None:
    """w0, then w0 + 1 and w0 + 3: 0.75 w0 + 0.25 (w0 + 1) = w0 + 0.25, and 0.75 (w0 + 0.25) + 0.25 (w0 + 3)."""
    policy = tiny_policy()
    reference = Reference(policy, kind="ema", decay=0.75)
    start = weights(policy)
    add_to_all(policy, 1.0)
    reference.after_update(0)
    found = weights(reference.policy)
    assert all(torch.allclose(found[n], start[n] + 0.25, rtol=0, atol=1e-6) for n in start)
    add_to_all(policy, 2.0)
    reference.after_update(1)
    found = weights(reference.policy)
    assert all(torch.allclose(found[n], start[n] + 0.9375, rtol=0, atol=1e-6) for n in start)


def test_a_copy_every_third_step() -> None:
    policy = tiny_policy()
    reference = Reference(policy, kind="periodic", every=3)
    seen = []
    for step in range(7):
        add_to_all(policy, 1.0)
        reference.after_update(step)
        seen.append(float((weights(reference.policy)["model.norm.weight"] - 1).mean()))  # 1 at the start
    assert seen == [0, 0, 3, 3, 3, 6, 6]  # after steps 2 and 5


def test_an_average_of_half_precision_weights_is_kept_in_float32() -> None:
    """Steps of 0.1 % are lost to bfloat16 one by one, not to the average: 1 + 1 * (1 - 0.999^1000) = 1.632."""
    policy = Policy(model=tiny_model().bfloat16(), tokenizer=tiny_tokenizer())
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(1.0)
    reference = Reference(policy, kind="ema", decay=0.999)
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(2.0)
    for step in range(1000):
        reference.after_update(step)
    state = reference.state_tensors()["reference/model.norm.weight"]
    assert state.dtype is torch.float32
    assert torch.allclose(state, torch.tensor(1.63230), atol=1e-4)
    assert reference.policy.model.model.norm.weight.dtype is torch.bfloat16
    assert torch.equal(reference.policy.model.model.norm.weight, state.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rule", [{"kind": "ema", "decay": 0.9}, {"kind": "periodic", "every": 2}])
def test_it_goes_on_bit_for_bit_where_it_was_saved(dtype: torch.dtype, rule: dict[str, object]) -> None:
    def policy() -> Policy:
        return Policy(model=tiny_model().to(dtype), tokenizer=tiny_tokenizer())

    def go(policy: Policy, reference: Reference, steps: range) -> None:
        for step in steps:
            add_to_all(policy, 0.01 * (step + 1))
            reference.after_update(step)

    whole_policy = policy()
    whole = Reference(whole_policy, **rule)  # type: ignore[arg-type]
    go(whole_policy, whole, range(3))
    saved = {n: t.clone() for n, t in whole.state_tensors().items()}
    resumed_policy = policy()
    resumed_policy.model.load_state_dict(whole_policy.model.state_dict())
    resumed = Reference(resumed_policy, **rule)  # type: ignore[arg-type]
    resumed.load_state_tensors({**saved, "model.norm.weight.step": torch.zeros(1)})
    assert all(torch.equal(p, weights(resumed.policy)[n]) for n, p in weights(whole.policy).items())
    go(whole_policy, whole, range(3, 6))
    go(resumed_policy, resumed, range(3, 6))
    assert all(torch.equal(t, resumed.state_tensors()[n]) for n, t in whole.state_tensors().items())
    assert all(torch.equal(p, weights(resumed.policy)[n]) for n, p in weights(whole.policy).items())


def test_another_state_is_refused_and_nothing_is_loaded() -> None:
    reference = Reference(tiny_policy(), kind="ema", decay=0.9)
    before = weights(reference.policy)
    state = {n: t + 1 for n, t in reference.state_tensors().items()}
    name = "reference/model.norm.weight"
    for wrong in ({}, state | {"reference/x": torch.zeros(1)}, state | {name: torch.zeros(3)},
                  state | {name: state[name].double()}):  # fmt: skip
        with pytest.raises(CheckpointError, match="resume with the same model"):
            reference.load_state_tensors(wrong)
    with pytest.raises(CheckpointError, match="such as 'reference/"):
        Reference(tiny_policy()).load_state_tensors(state)
    assert all(torch.equal(p, before[n]) for n, p in weights(reference.policy).items())


def test_of_an_adapter_its_factors_follow_and_the_base_is_shared() -> None:
    policy = tiny_policy()
    add_adapter(policy.model, LoraSettings(rank=2), base="base", seed=0)
    reference = Reference(policy, kind="ema", decay=0.5)
    assert {n.removeprefix("reference/") for n in reference.state_tensors()} == adapter_tensors(policy.model).keys()
    before = weights(policy)
    with torch.no_grad():
        for p in adapter_tensors(policy.model).values():
            p.add_(1.0)
    reference.after_update(0)
    own = weights(reference.policy)
    assert all(torch.allclose(own[n], before[n] + 0.5) for n in adapter_tensors(policy.model))
    [(_, mine), *_], [(_, theirs), *_] = reference.policy.logprobs(random_samples()), policy.logprobs(random_samples())
    assert not torch.allclose(mine, theirs, atol=1e-3)  # its adapter is on, and another
