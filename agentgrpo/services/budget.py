"""The budget: prices, and limits on calls, money and (except for an episode) seconds of an episode, a step and the
run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentgrpo.core.errors import ConfigError

ASKED_BY_POLICY = ("web", "vdb", "rerank", "fetch", "mcp")
ASKED_OF_MODELS = ("judge", "reader", "validity", "policy")
KINDS = (*ASKED_BY_POLICY, *ASKED_OF_MODELS)
OVER_BUDGET = "over_budget"
"""`kind` of the RetrieverError of a call over its episode's limit, which the policy is told about."""
_UNITS = 1_000_000_000


def units(money: float) -> int:
    """Convert money to integer billionths, so that sums are exact: a hundred calls at 0.05 cost 5."""
    return round(money * _UNITS)


def money(units: int) -> float:
    return units / _UNITS


def number(value: float) -> str:
    """Return a number in the spelling of a command line: 1000000, not 1e+06."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices per call and kind, in any currency. For judge, reader, validity and policy (turns of engine=openai) they
    are added to the token prices of those parts."""

    web: float = 0.0
    vdb: float = 0.0
    rerank: float = 0.0
    fetch: float = 0.0
    """Price of a page that a search agent or the tool fetches."""
    mcp: float = 0.0
    """Price of a call to a tool of an MCP server."""
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
    """Maximum number of calls of each kind; null = no limit."""

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
    """Total duration of calls, concurrent calls added up; a call under way when the limit is passed is not cut off."""

    @property
    def any(self) -> bool:
        return bool(self.calls.by_kind) or self.money is not None or self.seconds is not None

    def passed_by(
        self, kind: str, price: int, *, calls: int, money_spent: int, seconds: float = 0.0
    ) -> tuple[str, float] | None:
        """Return the key and value of the limit that one more call of this kind would pass, None if it passes no limit.
        price, money_spent: in billionths. calls: number of calls of this kind so far."""
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
    """Limits without seconds: the call that passes a limit on seconds depends on the order in which concurrent calls
    end, and a replay ends them in another order."""

    seconds: None = field(default=None, init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The `budget` node."""

    prices: Prices = field(default_factory=Prices)
    per_episode: EpisodeLimits = field(default_factory=EpisodeLimits)
    """Limits on the calls of one attempt at an episode, replayed or not; the policy is told when it reaches one. Models
    (judge, reader, validity, policy) have no such limit: they answer several episodes at once, or are the policy."""
    per_step: SpendingLimits = field(default_factory=SpendingLimits)
    """Limits on the calls that are paid for in one attempt at a training step."""
    per_run: SpendingLimits = field(default_factory=SpendingLimits)
    """Limits on all calls that are paid for in a run directory, repeated steps included."""

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
