"""The one loop: an environment and a policy take turns, until one of them ends it.

reset -> open -> ( sample -> step -> tell ) ... -> score -> close
drive: open, sample, tell in conversations as a program asks -> score -> close
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from agentgrpo.core.concurrency import off_loop
from agentgrpo.core.errors import EnvironmentFailure, boundary
from agentgrpo.core.numbers import named, number, row
from agentgrpo.core.types import Branch, Episode, Exit, Task, ToolRecord
from agentgrpo.engines.base import Engine, SamplingParams
from agentgrpo.environments.base import Environment, Observation, Scores
from agentgrpo.environments.conversation import Conversation, Driven, size_of
from agentgrpo.environments.factory import Attempt, EnvironmentFactory
from agentgrpo.environments.figures import Figures
from agentgrpo.renderers.base import Renderer

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyRunner:
    """A policy in an environment; implements environments.factory.Runner. Holds no state between episodes, so one
    serves any number of them at once."""

    environment: EnvironmentFactory
    engine: Engine
    """What the policy samples with."""
    renderer: Renderer
    note: str = ""
    is_graded: bool = False
    """What the run pays for is the judge's grade of the answer, and not what the environment pays."""

    @property
    def figures(self) -> Figures:
        return self.environment.figures.graded() if self.is_graded else self.environment.figures

    def rehearse(self, task: Task) -> None:
        """Raises ConfigError where an attempt at `task` could not begin."""
        self.environment.rehearse(task, max_context=self.engine.max_context)

    async def run(
        self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams, attempt: int = 0
    ) -> Episode:
        """See environments.factory.Runner. The environment scores before it is closed, and is closed however it
        ends."""
        of = Attempt(
            task=task, sample_index=sample_index, stream=stream, number=attempt, max_context=self.engine.max_context
        )
        environment = self.environment.make(of)
        record = _Record(name=self.environment.name)
        try:
            try:
                if isinstance(environment, Driven):
                    await self._be_driven(environment, of, sampling, record)
                else:
                    await self._take_turns(environment, of, sampling, record)
            finally:
                record.leave()
                if record.conversation is not None:
                    record.conversation.release()
            return record.scored(of, await environment.score(record.episode(of)))
        finally:
            await environment.close()

    async def _be_driven(self, environment: Driven, of: Attempt, sampling: SamplingParams, record: _Record) -> None:
        opened: list[Conversation] = []

        def new(stream: str) -> Conversation:
            at = replace(of, stream=stream)
            opened.append(Conversation(self.engine, self.renderer, at, sampling, self.environment.limits))
            return opened[-1]

        try:
            observation = await environment.drive(of.task, new, sampling=sampling)
        finally:
            for conversation in opened:
                conversation.release()
                if conversation.num_turns:
                    record.turns += conversation.num_turns
                    record.conversation = conversation
                    record.leave()
            record.conversation = None
        record.note(observation, "drive")
        record.end(observation)

    async def _take_turns(
        self, environment: Environment, of: Attempt, sampling: SamplingParams, record: _Record
    ) -> None:
        limits = self.environment.limits
        observation = await record.timed(environment.reset(of.task))
        record.note(observation, "reset")
        conversation: Conversation | None = None
        while True:
            if conversation is None and observation.done is not None:
                break
            if conversation is None or observation.fresh_context:
                record.leave()
                before = conversation
                conversation = record.conversation = Conversation(
                    self.engine, self.renderer, of, sampling, limits, first_turn=record.turns
                )
                open = partial(
                    conversation.open, observation.messages, observation.tools, shared=observation.shared_opening
                )
                if not await off_loop(open, size=size_of(observation.messages, observation.tools)):
                    record.exit = Exit.CONTEXT_OVERFLOW
                    return
                if before is not None and observation.repeats:
                    conversation.repeat(before, observation.repeats)
                said = observation.then
            else:
                said = observation.messages
            told = await off_loop(partial(conversation.tell, said), size=size_of(said))
            if told or not said:
                record.shown = tuple(observation.shown) or record.shown
            if told < len(said):
                record.exit = Exit.CONTEXT_OVERFLOW
                return
            if observation.done is not None:
                break
            if limits.max_turns is not None and record.turns >= limits.max_turns:
                record.exit = Exit.MAX_TURNS
                return
            turn = await conversation.sample()
            if turn is None:
                record.exit = Exit.CONTEXT_OVERFLOW
                return
            record.turns += 1
            if observation.is_last:
                conversation.release()
            observation = await record.timed(environment.step(turn))
            record.note(observation, "step")
            record.rewards.append(number(observation.reward, f"{record.name}.step: reward"))
        record.end(observation)


@dataclass(slots=True, kw_only=True)
class _Record:
    """What becomes of an attempt, on its way."""

    name: str
    conversation: Conversation | None = None
    turns: int = 0
    exit: Exit = Exit.MAX_TURNS
    answer: str | None = None
    last: Observation = field(default_factory=Observation)
    """The one that ended it, if the environment did."""
    branches: list[Branch] = field(default_factory=list)
    """Of contexts that are left."""
    rewards: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    metrics_by_turn: dict[str, tuple[float, ...]] = field(default_factory=dict)
    calls: list[ToolRecord] = field(default_factory=list)
    notes: list[object] = field(default_factory=list)
    shown: tuple[str, ...] = ()
    seconds: dict[str, float] = field(
        default_factory=lambda: {"time_generate": 0.0, "time_tools": 0.0, "time_queue": 0.0}
    )

    async def timed(self, work: Awaitable[T]) -> T:
        """`work` of the environment, its seconds counted as time_tools."""
        began = time.perf_counter()
        try:
            return await work
        finally:
            self.seconds["time_tools"] += time.perf_counter() - began

    def note(self, observation: Observation, method: str) -> None:
        """What is recorded whether or not the policy sees it. Raises BadValue. method: of the environment, which has
        said it."""
        self.calls.extend(observation.calls)
        self.notes.extend(observation.notes)
        self._measure(observation.metrics, method)

    def end(self, observation: Observation) -> None:
        """The environment's last word."""
        assert observation.done is not None
        self.exit, self.answer, self.last = observation.done, observation.answer, observation

    def scored(self, of: Attempt, scores: Scores) -> Episode:
        """The episode with what the environment scored, which is a metric too, and with `reward`, what it paid in
        all: for turns and at the end. Raises BadValue."""
        outcome = self._measure(scores, "score")
        if any(self.rewards):
            at_the_end = self.metrics.get("reward", 0.0)
            self.metrics["reward"] = _total(tuple(self.rewards)) + at_the_end
            self.metrics_by_turn["reward"] = (*self.rewards[:-1], self.rewards[-1] + at_the_end)
        return replace(self.episode(of), outcome=outcome)

    def _measure(self, given: Scores, method: str) -> Mapping[str, float | tuple[float, ...]]:
        """The metrics among those that there are; the newest of a name counts."""
        where = f"{self.name}.{method}"
        with boundary(EnvironmentFailure, where):
            measured = named(given, where, partial(row, most=self.turns), known=self.metrics)
        for name, value in measured.items():
            self.metrics_by_turn.pop(name, None)
            if isinstance(value, tuple):
                self.metrics_by_turn[name] = value
            self.metrics[name] = _total(value) if isinstance(value, tuple) else value
        return measured

    def leave(self) -> None:
        """The context, for a fresh one."""
        if self.conversation is not None:
            if self.conversation.num_segments:
                self.branches.append(self.conversation.branch)
            for name, spent in self.conversation.seconds.items():
                self.seconds[name] += spent

    def episode(self, of: Attempt) -> Episode:
        """As far as it has come."""
        return Episode(
            task=of.task,
            sample_index=of.sample_index,
            branches=tuple(self.branches),
            answer=self.answer,
            exit=self.exit,
            metrics=dict(self.metrics) | {f"exit_{e.value}": float(e is self.exit) for e in Exit},
            metrics_by_turn=dict(self.metrics_by_turn),
            citations=tuple(self.last.citations),
            retrieved_ids=self.shown,
            tool_records=tuple(self.calls),
            memory=tuple(self.notes),  # type: ignore[arg-type]
            timings=self.seconds,
            environment=self.name,
            turn_rewards=tuple(self.rewards) if any(self.rewards) else (),
        )


def _total(values: tuple[float, ...]) -> float:
    """In order, so that it is the same as what was counted turn by turn."""
    total = 0.0
    for value in values:
        total += value
    return total
