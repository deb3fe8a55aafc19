"""Replay in record mode: samples each turn again after its recorded context, with its own seed.

No tool, retriever, reader or judge is called. The sampling parameters of turns (stops, token limit) come from the agent
loop itself, which is stopped at its first turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from agentgrpo.config.settings import RolloutSettings
from agentgrpo.core.errors import EngineError, EpisodeError
from agentgrpo.core.types import FinishReason, Segment
from agentgrpo.engines.base import Completion, Engine, SamplingParams, SeedKey
from agentgrpo.records.screen import Bar
from agentgrpo.records.trajectories import TrajectoryRecord
from agentgrpo.reports.replay.comparing import compare_turn
from agentgrpo.reports.replay.divergence import Decode, Divergence, task_of, turns_of
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.training.canary import TOLERANCE

_SCORED = (0.0, 1.0)
"""Temperatures whose recorded log-probs equal those that an engine scores, from the untempered distribution."""


class Forced:
    """tolerance: maximum difference of log-probs; None = the engine samples other tokens each time, so the recorded
    tokens are scored."""

    def __init__(
        self,
        engine: Engine,
        runner: PolicyRunner,
        *,
        tolerance: float | None,
        stream: str,
        sampling: SamplingParams,
        rollout: RolloutSettings,
        decode: Decode,
        bar: Bar,
    ) -> None:
        self._engine, self._stream, self._sampling = engine, stream, sampling
        self._listening = Listening(engine.max_context)
        self._runner = replace(runner, engine=self._listening)
        self._tolerance, self._decode, self._bar = tolerance, decode, bar
        self._room = asyncio.Semaphore(rollout.max_concurrent_episodes)
        self._scores = tolerance is None and sampling.temperature in _SCORED

    async def replay(self, records: Sequence[TrajectoryRecord]) -> list[Divergence | None]:
        """The first divergence of each record, in order. Raises EngineError."""
        done = 0

        async def one(record: TrajectoryRecord) -> Divergence | None:
            nonlocal done
            async with self._room:
                found = await (self._scored(record) if self._scores else self._sampled(record))
            done += 1
            self._bar.reached("replaying", done, done, len(records))
            return found

        try:
            async with asyncio.TaskGroup() as running:
                tasks = [running.create_task(one(record)) for record in records]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _sampled(self, record: TrajectoryRecord) -> Divergence | None:
        heard = await self._heard(record)
        try:
            for turn in turns_of(record.branches):
                key = SeedKey(self._stream, record.task, record.sample_index, turn.number)
                found = await self._engine.generate(turn.context, _of_turn(heard, turn.said), key)
                again = replace(
                    turn.said,
                    token_ids=found.token_ids,
                    logprobs=found.logprobs,
                    cut_short=found.finish_reason is FinishReason.LENGTH,
                    text=self._decode(found.token_ids),
                )
                tolerance = TOLERANCE if self._tolerance is None else self._tolerance
                if difference := compare_turn(record.id, turn, again, tolerance=tolerance, decode=self._decode):
                    return difference
        finally:
            self._engine.release(SeedKey(self._stream, record.task, record.sample_index, 0))
        return None

    async def _scored(self, record: TrajectoryRecord) -> Divergence | None:
        """Compare the log-probs that the engine gives the recorded tokens, a branch at a time."""
        scores: dict[int, list[float]] = {}
        for turn in turns_of(record.branches):
            if turn.branch not in scores:
                scores[turn.branch] = await self._engine.score(record.branches[turn.branch].token_ids)
            begins = len(turn.context) - 1  # the first token has no score
            own = scores[turn.branch][begins : begins + len(turn.said.token_ids)]
            again = replace(turn.said, logprobs=tuple(own), text=self._decode(turn.said.token_ids))
            if difference := compare_turn(record.id, turn, again, tolerance=TOLERANCE, decode=self._decode):
                return difference
        return None

    async def _heard(self, record: TrajectoryRecord) -> SamplingParams:
        """The sampling parameters of the loop's first turn in this episode; `sampling` if the loop takes no turn."""
        heard: list[SamplingParams] = []
        self._listening.heard[record.task, record.sample_index] = heard
        try:
            await self._runner.run(
                task_of(record), sample_index=record.sample_index, stream=self._stream, sampling=self._sampling
            )
        except EpisodeError:
            if not heard:
                raise
        return heard[0] if heard else self._sampling


def _of_turn(heard: SamplingParams, said: Segment) -> SamplingParams:
    """A turn cut short below the agent's token limit had filled its context: limit it to the same number of tokens
    again."""
    heard = replace(heard, grammar=said.grammar)
    is_full = said.cut_short and len(said.token_ids) < heard.max_tokens
    return replace(heard, max_tokens=len(said.token_ids)) if is_full else heard


class Listening:
    """An engine that records the sampling parameters of requests by task and sample, and answers no request."""

    trainable = False

    def __init__(self, max_context: int) -> None:
        self.max_context = max_context
        self.heard: dict[tuple[str, int], list[SamplingParams]] = {}

    async def generate(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Completion:
        self.heard[key.task_id, key.sample_index].append(sampling)
        raise EngineError("nothing is sampled here", kind="listening")

    def release(self, key: SeedKey) -> None:
        """No state to release."""

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        raise EngineError("nothing is scored here", kind="listening")

    async def load_weights(self, policy_version: int) -> None:
        """No weights to load."""

    async def close(self) -> None:
        """No resources to close."""
