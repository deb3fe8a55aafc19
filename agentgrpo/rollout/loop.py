"""The rollout loop: environment and policy alternate until one of them ends the episode.

reset -> open -> ( sample -> step -> tell ) ... -> score -> close
drive: open, sample and tell in conversations that a program requests -> score -> close
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import TypeVar

from agentgrpo.core.concurrency import off_loop
from agentgrpo.core.errors import BadValue, EnvironmentFailure, boundary
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
    """A policy in an environment; implements environments.factory.Runner. It holds no state between episodes, so one
    runner can serve any number of episodes at once."""

    environment: EnvironmentFactory
    engine: Engine
    """The engine that the policy samples with."""
    renderer: Renderer
    note: str = ""
    is_graded: bool = False
    """The run rewards the judge's grade of the answer instead of the environment's reward."""

    @property
    def figures(self) -> Figures:
        return self.environment.figures.graded() if self.is_graded else self.environment.figures

    def rehearse(self, task: Task) -> None:
        """Raises ConfigError if an attempt at `task` could not begin."""
        self.environment.rehearse(task, max_context=self.engine.max_context)

    async def run(
        self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams, attempt: int = 0
    ) -> Episode:
        """See environments.factory.Runner. The environment scores the episode before it is closed; it is always
        closed."""
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
                record.leave_all()
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
                    record.add(conversation)
        record.note(observation, "drive")
        record.end(observation)

    async def _take_turns(
        self, environment: Environment, of: Attempt, sampling: SamplingParams, record: _Record
    ) -> None:
        limits = self.environment.limits
        observation = await record.timed(environment.reset(of.task))
        record.note(observation, "reset")
        seat = observation.seat
        while True:
            if observation.seat or observation.done is None:  # the final observation is for the seat of the last turn
                seat = observation.seat
            if len({bool(name) for name in (*record.contexts, seat)}) > 1:
                raise BadValue(f"{record.name}: some observations name a seat and some do not; name it in each of them")
            before = record.contexts.get(seat)
            if before is None and observation.done is not None:
                break
            if before is None or observation.fresh_context:
                record.leave(seat)
                at = replace(of, stream=f"{of.stream}/{seat}") if seat else of
                conversation = record.contexts[seat] = Conversation(self.engine, self.renderer, at, sampling, limits)
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
                conversation, said = before, observation.messages
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
            turn = await conversation.sample(number=record.turns)
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
    """The record of an attempt in progress."""

    name: str
    contexts: dict[str, Conversation] = field(default_factory=dict)
    """Seat -> its open context."""
    turns: int = 0
    exit: Exit = Exit.MAX_TURNS
    answer: str | None = None
    last: Observation = field(default_factory=Observation)
    """The observation that ended the episode, if the environment ended it."""
    branches: list[Branch] = field(default_factory=list)
    """Branches of closed contexts."""
    order: list[int] = field(default_factory=list)
    """Turn numbers in the order of `branches`; with several seats this is not the order of sampling."""
    rewards: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    metrics_by_turn: dict[str, tuple[float, ...]] = field(default_factory=dict)
    calls: list[ToolRecord] = field(default_factory=list)
    seats: dict[str, list[int]] = field(default_factory=dict)
    """Seat -> its turns."""
    notes: list[object] = field(default_factory=list)
    shown: tuple[str, ...] = ()
    seconds: dict[str, float] = field(
        default_factory=lambda: {"time_generate": 0.0, "time_tools": 0.0, "time_queue": 0.0}
    )

    async def timed(self, work: Awaitable[T]) -> T:
        """Await `work` of the environment and count its seconds as time_tools."""
        began = time.perf_counter()
        try:
            return await work
        finally:
            self.seconds["time_tools"] += time.perf_counter() - began

    def note(self, observation: Observation, method: str) -> None:
        """Record calls, notes and metrics, whether or not the policy sees them. Raises BadValue. method: the
        environment method that returned the observation."""
        self.calls.extend(observation.calls)
        self.notes.extend(observation.notes)
        self._measure(observation.metrics, method)

    def end(self, observation: Observation) -> None:
        """Record the environment's final observation."""
        assert observation.done is not None
        self.exit, self.answer, self.last = observation.done, observation.answer, observation

    def scored(self, of: Attempt, scores: Scores) -> Episode:
        """Return the episode with the environment's scores, which are metrics too, and with `reward`: the sum of the
        rewards for turns and at the end. Raises BadValue."""
        outcome = self._measure(scores, "score")
        if self.seats:
            self._pay_seats()
        elif any(self.rewards):
            at_the_end = self.metrics.get("reward", 0.0)
            self.metrics["reward"] = _total(tuple(self.rewards)) + at_the_end
            self.metrics_by_turn["reward"] = (*self.rewards[:-1], self.rewards[-1] + at_the_end)
        return replace(self.episode(of), outcome=outcome)

    def _pay_seats(self) -> None:
        """Give each seat the rewards of its turns plus its final reward: the one under its name, or the shared one.
        `reward` becomes the mean over seats. Raises BadValue for a reward that belongs to no seat."""
        given = {name.removeprefix("reward/") for name in self.metrics if name.startswith("reward/")}
        if (unknown := given - self.seats.keys()) and self.seats.keys() - given:
            raise BadValue(
                f"{self.name}.score pays {', '.join(sorted(unknown))}; the seats that took a turn are "
                f"{', '.join(self.seats)}: pay these"
            )
        rewards = list(self.rewards)
        if by_turn := self.metrics_by_turn.get("reward"):
            rewards = [a + b for a, b in zip_longest(rewards, by_turn, fillvalue=0.0)]
        for seat, turns in self.seats.items():
            shared = 0.0 if by_turn else self.metrics.get("reward", 0.0)
            rewards[turns[-1]] += self.metrics.get(f"reward/{seat}", shared)
            self.metrics[f"reward/{seat}"] = _total(tuple(rewards[turn] for turn in turns))
        self.metrics_by_turn["reward"] = tuple(rewards)
        self.metrics["reward"] = math.fsum(self.metrics[f"reward/{seat}"] for seat in self.seats) / len(self.seats)

    def _measure(self, given: Scores, method: str) -> Mapping[str, float | tuple[float, ...]]:
        """Merge the given metrics into the recorded ones; the newest value of a name replaces older ones."""
        where = f"{self.name}.{method}"
        with boundary(EnvironmentFailure, where):
            measured = named(given, where, partial(row, most=self.turns), known=self.metrics)
        for name, value in measured.items():
            self.metrics_by_turn.pop(name, None)
            if isinstance(value, tuple):
                self.metrics_by_turn[name] = value
            self.metrics[name] = _total(value) if isinstance(value, tuple) else value
        return measured

    def leave(self, seat: str) -> None:
        """Close the seat's context because a fresh one replaces it."""
        if (conversation := self.contexts.get(seat)) is not None:
            self.add(conversation, seat)

    def leave_all(self) -> None:
        """Close all contexts at the end of the episode."""
        for seat, conversation in self.contexts.items():
            self.add(conversation, seat)
            conversation.release()

    def add(self, conversation: Conversation, seat: str = "") -> None:
        """Add the conversation's branch, turns and seconds to the record."""
        if conversation.num_segments:
            self.branches.append(replace(conversation.branch, seat=seat))
            self.order += conversation.sampled_turns
            if seat and conversation.num_turns:
                self.seats.setdefault(seat, []).extend(conversation.sampled_turns)
        for name, spent in conversation.seconds.items():
            self.seconds[name] += spent

    def episode(self, of: Attempt) -> Episode:
        """Return the episode so far. Per-turn values are put in the order of the branches."""
        place = {turn: place for place, turn in enumerate(self.order)} if self.seats else {}
        return Episode(
            task=of.task,
            sample_index=of.sample_index,
            branches=tuple(self.branches),
            answer=self.answer,
            exit=self.exit,
            metrics=dict(self.metrics) | {f"exit_{e.value}": float(e is self.exit) for e in Exit},
            metrics_by_turn={name: self._by_branch(values) for name, values in self.metrics_by_turn.items()},
            citations=tuple(self.last.citations),
            retrieved_ids=self.shown,
            tool_records=tuple(replace(c, turn=place.get(c.turn, c.turn)) for c in self.calls)
            if place
            else tuple(self.calls),
            memory=tuple(self.notes),  # type: ignore[arg-type]
            timings=self.seconds,
            environment=self.name,
            turn_rewards=self._by_branch(tuple(self.rewards)) if any(self.rewards) else (),
        )

    def _by_branch(self, values: tuple[float, ...]) -> tuple[float, ...]:
        """Reorder a row with one number per turn; a shorter row is returned unchanged."""
        return tuple(values[turn] for turn in self.order) if self.seats and len(values) == len(self.order) else values


def _total(values: tuple[float, ...]) -> float:
    """Add in order, so that the sum equals one accumulated turn by turn."""
    total = 0.0
    for value in values:
        total += value
    return total
