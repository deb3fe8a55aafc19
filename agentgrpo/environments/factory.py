"""What makes environments, and what turns tasks into episodes: a fresh environment for every attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agentgrpo.core.types import Episode, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.base import Environment
from agentgrpo.environments.figures import Figures

if TYPE_CHECKING:
    from agentgrpo.environments.conversation import Driven  # which knows attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Which attempt at which task an environment is made for."""

    task: Task
    sample_index: int
    stream: str
    """What is sampled for: "train/12" (the step), "eval/test"."""
    number: int = 0
    """0, and one more for every retry."""
    max_context: int
    """Tokens of a context that the engine holds."""

    @property
    def seed(self) -> str:
        """Seeds whatever the environment draws; the same for a retry."""
        return f"{self.stream}|{self.task.id}|{self.sample_index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """What rollout.loop allows an attempt."""

    max_turns: int | None = None
    """Sampled turns; None = until the environment says so."""
    max_context: int | None = None
    """Tokens of a context; None = as many as the engine holds."""
    min_context_left: int = 1
    """No turn is sampled with fewer tokens left."""
    stop: tuple[str, ...] = ()
    """Strings that end a turn where no tools are on offer."""


class EnvironmentFactory(Protocol):
    """Makes the environments of a run; holds what they share (retrievers, tools) and nothing of any of them."""

    @property
    def name(self) -> str: ...

    @property
    def figures(self) -> Figures:
        """What its episodes are compared by."""
        ...

    @property
    def limits(self) -> TurnLimits: ...

    @property
    def metrics(self) -> frozenset[str]:
        """Names of all metrics its episodes have; empty where that is not known beforehand."""
        ...

    def make(self, attempt: Attempt) -> Environment | Driven: ...

    def rehearse(self, task: Task, *, max_context: int) -> None:
        """Raises ConfigError where the opening for `task` cannot be written, or leaves no room for a turn in an engine
        that holds `max_context` tokens."""
        ...

    def opening_tokens(self, task: Task, *, most: int) -> int | None:
        """Tokens that an attempt at `task` opens with, or at least so many where these are more than `most`; None where
        that is not known before the attempt."""
        ...

    def counts(self) -> Mapping[str, float]:
        """What its parts asked of models so far, by part and name, such as reader/cost; never a clock."""
        ...

    def baselines(self, spent: Callable[[str], Mapping[str, float]]) -> Mapping[str, Runner]:
        """Rules to hold a policy against, by name, in the order shown: they need no training and sample nothing.
        spent(column): kind of task -> the policy's mean of that figure, "" = of all tasks."""
        ...

    async def probe(self) -> None:
        """Raises ConfigError or EpisodeError where a service that it needs does not answer."""
        ...

    async def close(self) -> None:
        """At the end of the run."""
        ...


class Runner(Protocol):
    """Turns a Task into an Episode: the policy in an environment (rollout.loop), or a rule."""

    @property
    def note(self) -> str:
        """What its figures mean, where that is something else; "" = what they say."""
        ...

    @property
    def figures(self) -> Figures: ...

    async def run(
        self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams, attempt: int = 0
    ) -> Episode:
        """One attempt. `stream` and `sample_index` seed it (engines.base.SeedKey). The policy's mistakes end up in the
        Episode; an infrastructure failure raises an EpisodeError, which rollout.groups captures. However it ends,
        nothing of it runs on."""
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
