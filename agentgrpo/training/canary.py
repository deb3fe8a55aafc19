"""After every weight sync: check that engine and trainer hold the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeGuard

from agentgrpo.core.errors import TrainingError
from agentgrpo.core.types import TrainingSample
from agentgrpo.engines.base import Engine
from agentgrpo.engines.torch_settings import TorchSettings
from agentgrpo.training.policy import Policy

TOLERANCE = 1e-2
"""Nats, for weights in float32. Far above numerical noise (2e-5), far below the gap of stale weights."""
HALF_TOLERANCE = 0.5
"""Nats, for weights in half precision, where two kernels round the same weights differently: by .20 with SmolLM2 on an
H100, by .03 with 24 random layers. A server that kept its old embeddings was .8 off."""


class Pooled(Engine, Protocol):
    """An engine with several servers, some of which may rejoin with old weights (engines.remote)."""

    async def check(self, token_ids: Sequence[int], expected: Sequence[float], tolerance: float) -> float:
        """Compare every server with `expected`, including those that join later. Only servers that pass are sampled
        from. Returns the largest difference among the servers that pass or, if no server passes, the smallest
        difference."""
        ...


def is_pooled(engine: Engine) -> TypeGuard[Pooled]:
    """Return whether this is an engine whose weights are checked here."""
    return engine.trainable and hasattr(engine, "check")


def allowed_gap(policy: Policy) -> float:
    """Return the allowed difference in nats between two holders of the weights of `policy`."""
    return HALF_TOLERANCE if policy.is_half else TOLERANCE


async def have_sample(engine: Engine, policy: Policy, token_ids: Sequence[int], step: int) -> None:
    """Make an external engine sample from `policy` after `step` updates; raises if its weights do not match."""
    await engine.load_weights(step)
    await refuse_stale_weights(engine, policy, token_ids, step)


async def refuse_stale_weights(engine: Engine, policy: Policy, token_ids: Sequence[int], step: int) -> dict[str, float]:
    """Score one fixed prompt on both sides and raise TrainingError above `allowed_gap`. Returns the gap as a tag."""
    n = len(token_ids)
    sample = TrainingSample(
        group_id="canary",
        sample_index=0,
        token_ids=tuple(token_ids),
        loss_mask=(0,) + (1,) * (n - 1),
        rollout_logprobs=(0.0,) * n,
        advantage=0.0,
        num_prompt_tokens=1,
        policy_version=max(step, 0),
    )
    with TorchSettings.of_run().in_force():
        ((_, expected),) = policy.logprobs([sample], all_rows=True)  # as servers score a prompt
    allowed = allowed_gap(policy)
    if is_pooled(engine):
        gap = await engine.check(token_ids, expected.tolist(), allowed)
    else:
        found = await engine.score(token_ids)
        gap = max(abs(a - b) for a, b in zip(expected.tolist(), found, strict=True))
    if not gap <= allowed:
        when = "before the first step" if step < 0 else f"after step {step}"
        raise TrainingError(
            f"{when} the engine's log-probs differ from the trainer's by {gap:.3g} nats on a fixed prompt "
            f"(allowed: {allowed}); the engine samples from stale or damaged weights: check its weight sync"
        )
    return {"policy/canary_gap": gap}
