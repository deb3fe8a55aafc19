"""What the canary lets pass depends on the precision of the weights."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from agentgrpo.core.errors import TrainingError
from agentgrpo.engines.hf import HFEngine
from agentgrpo.training.canary import refuse_stale_weights
from agentgrpo.training.policy import Policy
from tests.engines.tiny import engine, model, tokenizer

PROMPT = (5, 6, 7, 8)


class Off:
    """An engine whose log-probs are `gap` nats off."""

    trainable = True

    def __init__(self, inner: HFEngine, gap: float) -> None:
        self._inner, self._gap = inner, gap

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        return [p + self._gap for p in await self._inner.score(token_ids)]


@pytest.mark.parametrize(
    ("dtype", "gap", "passes"),
    [
        (torch.float32, 0.0, True),
        (torch.float32, 0.03, False),
        (torch.bfloat16, 0.2, True),  # as rounding does on a GPU
        (torch.bfloat16, 0.8, False),  # as a server did that kept its old embeddings
    ],
)
async def test_what_passes(dtype, gap, passes):
    policy = Policy(model=model("llama").to(dtype), tokenizer=tokenizer())
    off = Off(engine(policy.model), gap)
    if passes:
        assert (await refuse_stale_weights(off, policy, PROMPT, 0))["policy/canary_gap"] == pytest.approx(gap, abs=0.02)
    else:
        with pytest.raises(TrainingError, match="differ from the trainer's by"):
            await refuse_stale_weights(off, policy, PROMPT, 0)
