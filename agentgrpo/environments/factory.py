"""Protocols for making environments and for turning tasks into episodes; every attempt gets a new environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agentgrpo.core.types import Episode, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.base import Environment
from agentgrpo.environments.figures import Figures

if TYPE_CHECKING:
    from agentgrpo.environments.conversation import Driven  # it imports Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The attempt at a task for which an environment is made."""

    task: Task
    sample_index: int
    stream: str
    """The purpose of the sampling: "train/12" (at step 12), "eval/test"."""
    number: int = 0
    """0 at first, and one more for every retry."""
    max_context: int
    """Maximum tokens of a context in the engine."""

    @property
    def seed(self) -> str:
        """Seed of all random draws of the environment; a retry has the same."""
        return f"{self.stream}|{self.task.id}|{self.sample_index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """Limits of an attempt, enforced by rollout.loop."""

    max_turns: int | None = None
    """Maximum sampled turns; None = until the environment ends the episode."""
    max_context: int | None = None
    """Maximum tokens of a context; None = the engine's limit."""
    min_context_left: int = 1
    """No turn is sampled with fewer tokens left."""
    stop: tuple[str, ...] = ()
    """Strings that end a turn if no tools are offered."""


class EnvironmentFactory(Protocol):
    """Makes the environments of a run. It holds what they share (retrievers, tools), and no state of a single
    attempt."""

    @property
    def name(self) -> str: ...

    @property
    def figures(self) -> Figures:
        """The figures by which its episodes are compared."""
        ...

    @property
    def limits(self) -> TurnLimits: ...

    @property
    def metrics(self) -> frozenset[str]:
        """Names of all metrics that its episodes have; empty if not known beforehand."""
        ...

    def make(self, attempt: Attempt) -> Environment | Driven: ...

    def rehearse(self, task: Task, *, max_context: int) -> None:
        """Check the opening for `task`. Raises ConfigError if it cannot be written, or leaves no room for a turn in an
        engine that holds `max_context` tokens."""
        ...

    def opening_tokens(self, task: Task, *, most: int) -> int | None:
        """Number of opening tokens of an attempt at `task`, or a lower bound if it is more than `most`; None if it is
        not known before the attempt."""
        ...

    def counts(self) -> Mapping[str, float]:
        """Model usage of its parts so far, by part and name, such as reader/cost; no times."""
        ...

    def baselines(self, spent: Callable[[str], Mapping[str, float]]) -> Mapping[str, Runner]:
        """Rules to compare a policy with, by name, in the order shown; they need no training and sample nothing.
        spent(column): kind of task -> the policy's mean of that figure; "" = the mean over all tasks."""
        ...

    async def probe(self) -> None:
        """Raise ConfigError or EpisodeError if a service that it needs does not answer."""
        ...

    async def close(self) -> None:
        """Close the shared parts at the end of the run."""
        ...


class Runner(Protocol):
    """Turns a Task into an Episode: the policy in an environment (rollout.loop), or a rule."""

    @property
    def note(self) -> str:
        """The meaning of its figures, if it is not the usual one; "" = the usual meaning."""
        ...

    @property
    def figures(self) -> Figures: ...

    async def run(
        self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams, attempt: int = 0
    ) -> Episode:
        """Run one attempt. `stream` and `sample_index` seed it (engines.base.SeedKey). The policy's mistakes are part
        of the Episode; an infrastructure failure raises an EpisodeError, which rollout.groups captures. Nothing of the
        attempt keeps running, however it ends."""
        ...


class EnvironmentDefaults:
    """Defaults for the optional members of a factory."""

    @property
    def metrics(self) -> frozenset[str]:
        return frozenset()

    def rehearse(self, task: Task, *, max_context: int) -> None:
        """Nothing is known before the first attempt."""

    def opening_tokens(self, task: Task, *, most: int) -> int | None:
        return None

    def counts(self) -> Mapping[str, float]:
        return {}

    def baselines(self, spent: Callable[[str], Mapping[str, float]]) -> Mapping[str, Runner]:
        return {}

    async def probe(self) -> None:
        """It asks no service."""

    async def close(self) -> None:
        """It holds nothing open."""
