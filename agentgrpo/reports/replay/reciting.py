"""An engine that returns recorded turns."""

from __future__ import annotations

from collections.abc import Sequence

from agentgrpo.core.errors import EngineError
from agentgrpo.core.types import FinishReason, Segment
from agentgrpo.engines.base import Completion, Engine, SamplingParams, SeedKey
from agentgrpo.records.trajectories import TrajectoryRecord
from agentgrpo.reports.replay.divergence import turns_of


class Reciting:
    """Returns the recorded turns in order, whatever the context. After the last recorded turn it repeats that turn; by
    then the episodes differ anyway. It lets replies of tools be compared when the engine cannot reproduce its samples.
    """

    trainable = False

    def __init__(self, records: Sequence[TrajectoryRecord], engine: Engine) -> None:
        self.max_context = engine.max_context
        self._turns: dict[tuple[str, int], list[Segment]] = {
            (r.task, r.sample_index): [turn.said for turn in turns_of(r.branches)] for r in records
        }

    async def generate(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Completion:
        turns = self._turns[key.task_id, key.sample_index]
        said = turns[min(key.turn, len(turns) - 1)]
        assert said.logprobs is not None
        assert said.policy_version is not None
        return Completion(
            token_ids=said.token_ids,
            logprobs=said.logprobs,
            finish_reason=FinishReason.LENGTH if said.cut_short else FinishReason.STOP,
            policy_version=said.policy_version,
        )

    def release(self, key: SeedKey) -> None:
        """No state to release."""

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        raise EngineError("recorded turns are not scored", kind="not_recorded")

    async def load_weights(self, policy_version: int) -> None:
        """No weights to load."""

    async def close(self) -> None:
        """No resources to close."""
