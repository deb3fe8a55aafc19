"""What an agent is: the loop that turns a Task into an Episode, and which figures its episodes are compared by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from agentgrpo.core.errors import ConfigError, did_you_mean
from agentgrpo.core.types import Episode, RewardResult, Task
from agentgrpo.engines.base import Engine, SamplingParams

Column: TypeAlias = Callable[[Episode, RewardResult | None], float]
"""A figure of one episode; the reward is None where the infrastructure failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What eval.json reports of a kind of agent, and what it takes to PASS.

    `columns` and two that every agent has: `cost`, of its calls, and `reward`. Raises ValueError for a name that is
    none of these, and for one in `counts` or `prices` alone.
    """

    columns: Mapping[str, Column]
    headline: tuple[str, ...]
    """Columns that scripts rely on, in the order shown; `quality` and `thrift` among them."""
    by_kind: tuple[str, ...]
    """Columns shown for each kind of task."""
    quality: str
    """Must not fall beyond noise: the judge's grade, in [0, 1] and 0.0 where there is no reward."""
    thrift: str
    """Must fall beyond noise. Its name is a plural (search_rounds), for sentences."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Column -> its name where there is little room, if it has another one."""
    counts: Mapping[str, str] = field(default_factory=dict)
    """Name of a kind of call in run.eval.prices -> the metric of an episode that counts these calls."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """Name of a kind of call -> the price of one, unless run.eval.prices has another."""

    def __post_init__(self) -> None:
        known = {*self.columns, "cost", "reward"}
        odd = {*self.headline, *self.by_kind, *self.labels} - known
        odd |= {self.quality, self.thrift} - {*self.headline}
        odd |= self.counts.keys() ^ self.prices.keys()
        if odd:
            raise ValueError(f"figures {sorted(odd)}: name columns ({sorted(known)}), and a price for every count")

    def label(self, column: str) -> str:
        return self.labels.get(column, column.replace("_", " "))

    def priced(self, given: Mapping[str, float]) -> dict[str, float]:
        """The price of every kind of call: as given (run.eval.prices), else the agent's own. Raises ConfigError for a
        name that the agent does not know."""
        for name in given:
            if name not in self.counts:
                known = f"{', '.join(self.counts)}; price these" if self.counts else "no calls (tools=none); add tools"
                near = did_you_mean(name, self.counts)
                raise ConfigError(f"run.eval.prices.{name}: this agent makes {known}, or leave it out.{near}")
        return {name: given.get(name, self.prices[name]) for name in self.counts}

    def cost(self, metrics: Mapping[str, float], prices: Mapping[str, float]) -> float:
        """What an episode's calls cost at `prices` (see `priced`), whatever the reward charges for them."""
        return sum(price * metrics.get(self.counts[name], 0.0) for name, price in prices.items())

    def row(self, episode: Episode, reward: RewardResult | None, prices: Mapping[str, float]) -> dict[str, float]:
        """Every column of one episode: the headline first, then the reward, then the others."""
        values = {name: column(episode, reward) for name, column in self.columns.items()}
        values |= {"cost": self.cost(episode.metrics, prices), "reward": reward.total if reward else 0.0}
        return {name: values[name] for name in (*self.headline, "reward", *values)}


def metric(name: str) -> Column:
    """The column that is an episode's metric of that name; 0.0 where it has none."""
    return lambda episode, reward: episode.metrics.get(name, 0.0)


def correctness(episode: Episode, reward: RewardResult | None) -> float:
    """The column that is the judge's grade of the answer."""
    return reward.correctness if reward else 0.0


class Agent(Protocol):
    @property
    def figures(self) -> Figures:
        """What its episodes are compared by."""
        ...

    async def run(self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams) -> Episode:
        """One attempt. `stream` and `sample_index` seed it (engines.base.SeedKey); `sampling.stop` is the agent's own
        business and is overridden. The policy's mistakes end up in the Episode; an infrastructure failure raises an
        EpisodeError, which `rollout.groups` captures. Must release its engine context however it ends."""
        ...


@runtime_checkable
class Rehearsing(Protocol):
    """An Agent that can tell before any episode that one could not begin."""

    def rehearse(self, task: Task) -> None:
        """Raises ConfigError where the opening for `task` cannot be written, or leaves no room for a turn."""
        ...


@runtime_checkable
class Counting(Protocol):
    """An Agent that can tell before any episode which metrics its episodes have."""

    @property
    def metrics(self) -> frozenset[str]: ...


def rehearse(agent: Agent, task: Task) -> None:
    """`agent.rehearse(task)`, for an agent that has it."""
    if isinstance(agent, Rehearsing):
        agent.rehearse(task)


# --- An agent that has others to be held against: they need no training, and their figures stand beside its own.


@runtime_checkable
class Measured(Protocol):
    budget: str
    """The column of its figures that says how much the policy spent, of what its baselines may spend as well."""

    def baselines(self, share: Mapping[str, float]) -> Mapping[str, Agent]:
        """By name, in the order shown; their figures are the agent's own, they sample nothing, and their episodes have
        no branches. share: kind of task -> the policy's mean of `budget`; "" = of all tasks, and of kinds that are not
        there."""
        ...


@runtime_checkable
class Annotated(Protocol):
    """A baseline whose figures do not mean quite what the policy's mean."""

    note: str
    """What they mean, in a few words; "" = the same."""


def note_of(agent: Agent) -> str:
    return agent.note if isinstance(agent, Annotated) else ""


# --- Agents with parts of their own, such as a reader, which may cost money and memory.


@runtime_checkable
class Accounting(Protocol):
    """An Agent whose parts count what they ask of models."""

    def counts(self) -> Mapping[str, float]:
        """Totals by part and name since it was built, such as reader/cost; never a clock, and they never fall."""
        ...


@runtime_checkable
class Replayable(Protocol):
    """An Agent that can be had again, with the same parts, for another engine."""

    def on(self, engine: Engine) -> Agent:
        """Not to be closed besides the one it was made of."""
        ...


def bill_of(agent: Agent) -> Mapping[str, float]:
    """`agent.counts()`; empty for an agent that counts nothing."""
    return agent.counts() if isinstance(agent, Accounting) else {}
