"""What an environment is: one attempt's world. It gives the opening, answers turns, and knows how it ended.

    reset(task) -> Observation --policy--> Turn -> step(turn) -> Observation ... done -> score(episode) -> close()

One is made for every attempt, retries too, so nothing of a failed attempt is left. What is the same for all of them
(tokens, limits, records, the Episode) is rollout.loop's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from agentgrpo.core.messages import AnyCall, ToolReply, ToolSpec
from agentgrpo.core.types import Citation, Episode, Exit, FinishReason, Message, Task, ToolRecord
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.figures import Figures

Scores: TypeAlias = Mapping[str, float | Sequence[float]]
"""name -> a number of the episode, or one for each of its turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the policy sampled, parsed. Where no tools are on offer, `content` is the whole text."""

    index: int
    """Of the episode, from 0."""
    text: str
    """As it was sampled, control tokens spelled out."""
    token_ids: tuple[int, ...]
    content: str = ""
    """The text without calls and reasoning."""
    reasoning: str = ""
    calls: tuple[AnyCall, ...] = ()
    """Tool calls in the order written, malformed ones among them."""
    answer: str | None = None
    """A final answer, where the format has a way to give one."""
    finish_reason: FinishReason = FinishReason.STOP


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the environment says next, and whether it is over."""

    messages: Sequence[Message | ToolReply] = ()
    """Appended to the context, each by itself but for neighbouring replies; text is untrusted but for a Message's
    trusted pieces. What does not fit into the context ends the episode as context_overflow."""
    tools: Sequence[ToolSpec] | None = None
    """On offer from here on, where a context opens; None = turns are plain text."""
    done: Exit | None = None
    answer: str | None = None
    """The final answer, with `done`."""
    reward: float = 0.0
    """For the turn that this answers."""
    metrics: Scores = field(default_factory=dict)
    """What has been measured so far; the newest value of a name counts. One number per turn so far: the episode's
    metric is their sum."""
    fresh_context: bool = False
    """`messages` open a new Branch instead of going on with the last one."""
    shared_opening: int = 0
    """Tokens that this fresh context opens with and others too (SamplingParams.opening)."""
    calls: Sequence[ToolRecord] = ()
    """Made for the turn, for the records."""
    shown: Sequence[str] = ()
    """Ids of all passages that the policy will have seen with these messages."""
    citations: Sequence[Citation] = ()
    notes: Sequence[Mapping[str, object]] = ()
    """JSON values for the records (Episode.memory)."""


class Environment(Protocol):
    async def reset(self, task: Task) -> Observation:
        """The opening messages and the tools on offer."""
        ...

    async def step(self, turn: Turn) -> Observation:
        """The answer to one turn. An infrastructure failure raises an EpisodeError."""
        ...

    async def score(self, episode: Episode) -> Scores:
        """What came of it, asked once, before `close`: hidden tests, end states, files."""
        ...

    async def close(self) -> None:
        """However it ended."""
        ...


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

    def make(self, attempt: Attempt) -> Environment: ...

    def rehearse(self, task: Task, *, max_context: int) -> None:
        """Raises ConfigError where the opening for `task` cannot be written, or leaves no room for a turn in an engine
        that holds `max_context` tokens."""
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
    """For factories that have none of what is optional."""

    @property
    def metrics(self) -> frozenset[str]:
        return frozenset()

    def rehearse(self, task: Task, *, max_context: int) -> None:
        """Nothing is known before the first attempt."""

    def counts(self) -> Mapping[str, float]:
        return {}

    def baselines(self, spent: Callable[[str], Mapping[str, float]]) -> Mapping[str, Runner]:
        return {}

    async def probe(self) -> None:
        """It asks no service."""

    async def close(self) -> None:
        """It holds nothing open."""
