"""The prices of searching: the terms of dimension search_efficiency. A wrong answer pays the share `cost_when_wrong`.

Each cost is charged to the turn that caused it, except for unnecessary fetches, which are known only at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Episode, Outcome, ToolRecord
from agentgrpo.rewards.base import count, is_sent, rounds, weighed
from agentgrpo.rewards.terms import SEARCH_EFFICIENCY, Penalty, Term, read, refuse_positive


class CostTerm(Penalty):
    """A cost with one weight per unit used."""

    dimension = SEARCH_EFFICIENCY
    is_cost = True


class PerSearch(CostTerm):
    """w · rounds_used."""

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * read(episode, "rounds_used")

    def per_turn(self, episode: Episode) -> Sequence[float]:
        return weighed(self.weight, rounds(episode), read(episode, "rounds_used"))


class UnnecessarySearch(CostTerm):
    """w · rounds after the first."""

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * max(0.0, read(episode, "rounds_used") - 1)

    def per_turn(self, episode: Episode) -> Sequence[float]:
        made = rounds(episode)
        further = [n if earlier > n else 0 for n, earlier in zip(made, accumulate(made), strict=True)]
        return weighed(self.weight, further, max(0.0, read(episode, "rounds_used") - 1))


class DuplicateQuery(CostTerm):
    """w · repeated_search_queries."""

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * read(episode, "repeated_search_queries")

    def per_turn(self, episode: Episode) -> Sequence[float]:
        return weighed(self.weight, count(episode, _is_repeated), read(episode, "repeated_search_queries"))


@dataclass(frozen=True, kw_only=True)
class BudgetPenalty(CostTerm):
    """w, once, when rounds_used / max(max_search_rounds, 1) reaches `threshold`."""

    threshold: float
    max_search_rounds: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold <= 0 or self.max_search_rounds < 0:
            raise ConfigError(
                f"Budget threshold={self.threshold}, max_search_rounds={self.max_search_rounds}: a threshold > 0 and "
                "0 or more rounds are allowed; correct them"
            )

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * self._is_reached(read(episode, "rounds_used"))

    def per_turn(self, episode: Episode) -> Sequence[float]:
        reached = [self._is_reached(used) for used in accumulate(rounds(episode))]
        first = [int(now and not before) for now, before in zip(reached, [False, *reached], strict=False)]
        return weighed(self.weight, first, self._is_reached(read(episode, "rounds_used")))

    def _is_reached(self, rounds_used: float) -> bool:
        return rounds_used / max(self.max_search_rounds, 1) >= self.threshold


class UnnecessaryFetch(CostTerm):
    """w · unnecessary_fetch_count."""

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * read(episode, "unnecessary_fetch_count")


@dataclass(frozen=True, kw_only=True)
class RetrieverCost(Term):
    """web · web_served + vdb · vdb_served: a web search that fell back to vdb is charged the price of vdb."""

    web: float
    vdb: float
    dimension = SEARCH_EFFICIENCY
    is_cost = True

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_positive(self, "web", self.web)
        refuse_positive(self, "vdb", self.vdb)

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.web * read(episode, "web_served") + self.vdb * read(episode, "vdb_served")

    def per_turn(self, episode: Episode) -> Sequence[float]:
        web = weighed(self.web, count(episode, partial(_is_served_by, "web")), read(episode, "web_served"))
        vdb = weighed(self.vdb, count(episode, partial(_is_served_by, "vdb")), read(episode, "vdb_served"))
        return [a + b for a, b in zip(web, vdb, strict=True)]


class RerankCost(CostTerm):
    """w · rerank_calls."""

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * read(episode, "rerank_calls")

    def per_turn(self, episode: Episode) -> Sequence[float]:
        return weighed(self.weight, count(episode, _is_reranked), read(episode, "rerank_calls"))


def _is_served_by(retriever: str, record: ToolRecord) -> bool:
    return is_sent(record) and record.arguments.get("served") == retriever


def _is_repeated(record: ToolRecord) -> bool:
    return record.name == "search" and record.detail == "repeated"


def _is_reranked(record: ToolRecord) -> bool:
    wanted = record.name == "rerank" or bool(record.arguments.get("rerank"))
    return wanted and record.outcome is Outcome.SUCCESS
