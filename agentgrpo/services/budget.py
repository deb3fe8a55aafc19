"""The budget: prices, and limits on calls, money and (not of an episode) seconds of an episode, a step and the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentgrpo.core.errors import ConfigError

ASKED_BY_POLICY = ("web", "vdb", "rerank", "fetch", "mcp")
ASKED_OF_MODELS = ("judge", "reader", "validity", "policy")
KINDS = (*ASKED_BY_POLICY, *ASKED_OF_MODELS)
OVER_BUDGET = "over_budget"
"""`kind` of the RetrieverError that a call over its episode's limit ends with: to be told to the policy."""
_UNITS = 1_000_000_000


def units(money: float) -> int:
    """In billionths: added up exactly, so that a hundred calls at 0.05 come to 5."""
    return round(money * _UNITS)


def money(units: int) -> float:
    return units / _UNITS


def number(value: float) -> str:
    """As a command line takes it: 1000000, not 1e+06."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Of one call, by kind, in any currency. judge, reader, validity and policy (turns of engine=openai): beside what
    they say tokens cost."""

    web: float = 0.0
    vdb: float = 0.0
    rerank: float = 0.0
    fetch: float = 0.0
    """A page, of a search agent's or of the tool."""
    mcp: float = 0.0
    """A call of an MCP server's tool."""
    judge: float = 0.0
    reader: float = 0.0
    validity: float = 0.0
    policy: float = 0.0

    def __post_init__(self) -> None:
        for kind, price in self.by_kind.items():
            if not (math.isfinite(price) and price >= 0):
                raise ConfigError(f"budget.prices.{kind}={price}; 0 or more is allowed")

    @property
    def by_kind(self) -> Mapping[str, float]:
        return {
            "web": self.web,
            "vdb": self.vdb,
            "rerank": self.rerank,
            "fetch": self.fetch,
            "mcp": self.mcp,
            "judge": self.judge,
            "reader": self.reader,
            "validity": self.validity,
            "policy": self.policy,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """At most so many calls of each kind; null = any number."""

    web: int | None = None
    vdb: int | None = None
    rerank: int | None = None
    fetch: int | None = None
    mcp: int | None = None
    judge: int | None = None
    reader: int | None = None
    validity: int | None = None
    policy: int | None = None

    @property
    def by_kind(self) -> Mapping[str, int]:
        limits = {
            "web": self.web,
            "vdb": self.vdb,
            "rerank": self.rerank,
            "fetch": self.fetch,
            "mcp": self.mcp,
            "judge": self.judge,
            "reader": self.reader,
            "validity": self.validity,
            "policy": self.policy,
        }
        return {kind: limit for kind, limit in limits.items() if limit is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingLimits:
    """null = no limit."""

    calls: CallLimits = field(default_factory=CallLimits)
    money: float | None = None
    seconds: float | None = None
    """Spent in calls, those side by side added up; the one under way when it is passed is not broken off."""

    @property
    def any(self) -> bool:
        return bool(self.calls.by_kind) or self.money is not None or self.seconds is not None

    def passed_by(
        self, kind: str, price: int, *, calls: int, money_spent: int, seconds: float = 0.0
    ) -> tuple[str, float] | None:
        """The key and value of the limit that one more call of this kind would pass. price, money_spent: in billionths.
        calls: of this kind so far."""
        most = self.calls.by_kind.get(kind)
        if most is not None and calls + 1 > most:
            return f"calls.{kind}", most
        if self.money is not None and price and money_spent + price > units(self.money):
            return "money", self.money
        if self.seconds is not None and seconds >= self.seconds:
            return "seconds", self.seconds
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits(SpendingLimits):
    """Not of seconds: which of the calls side by side is over them would depend on which of them ends first, and a
    replay ends them in another order."""

    seconds: None = field(default=None, init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The `budget` node."""

    prices: Prices = field(default_factory=Prices)
    per_episode: EpisodeLimits = field(default_factory=EpisodeLimits)
    """Of what one attempt at an episode asks for, replayed or not; the policy is told. Models (judge, reader,
    validity, policy) have no such limit: they answer several episodes at once, or are who would have to be told."""
    per_step: SpendingLimits = field(default_factory=SpendingLimits)
    """Of what is paid for in one go at a step of training."""
    per_run: SpendingLimits = field(default_factory=SpendingLimits)
    """Of all that is paid for in a run directory, also for steps that were done again."""

    def __post_init__(self) -> None:
        for scope, limits in self.by_scope.items():
            for key, limit in {**limits.calls.by_kind, "money": limits.money, "seconds": limits.seconds}.items():
                if limit is not None and not (math.isfinite(limit) and limit >= 0):
                    where = f"calls.{key}" if key in KINDS else key
                    raise ConfigError(f"budget.{scope}.{where}={limit}; 0 or more is allowed, and null for no limit")
        for kind in ASKED_OF_MODELS:
            if kind in self.per_episode.calls.by_kind:
                raise ConfigError(
                    f"budget.per_episode.calls.{kind}: allowed are {', '.join(ASKED_BY_POLICY)}; a model's "
                    f"calls are limited by budget.per_step.calls.{kind}"
                )

    @property
    def by_scope(self) -> Mapping[str, SpendingLimits]:
        return {"per_episode": self.per_episode, "per_step": self.per_step, "per_run": self.per_run}
