"""The prices of searching: the terms of dimension search_efficiency; a wrong answer pays `cost_when_wrong` of them."""

from __future__ import annotations

from dataclasses import dataclass

from agentgrpo.errors import ConfigError
from agentgrpo.rewards.terms import SEARCH_EFFICIENCY, Penalty, Term, read, refuse_positive
from agentgrpo.types import Episode


class Cost(Penalty):
    """One weight on something that was used up."""

    dimension = SEARCH_EFFICIENCY
    is_cost = True


class PerSearch(Cost):
    """w · rounds_used."""

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * read(episode, "rounds_used")


class UnnecessarySearch(Cost):
    """w · rounds after the first."""

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * max(0.0, read(episode, "rounds_used") - 1)


class DuplicateQuery(Cost):
    """w · repeated_search_queries."""

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * read(episode, "repeated_search_queries")


@dataclass(frozen=True, kw_only=True)
class Budget(Cost):
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
        return self.weight * (read(episode, "rounds_used") / max(self.max_search_rounds, 1) >= self.threshold)


class UnnecessaryFetch(Cost):
    """w · unnecessary_fetch_count."""

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * read(episode, "unnecessary_fetch_count")


@dataclass(frozen=True, kw_only=True)
class RetrieverCost(Term):
    """web · web_searches + vdb · vdb_searches, as requested: a web search that vdb had to serve is paid as web."""

    web: float
    vdb: float
    dimension = SEARCH_EFFICIENCY
    is_cost = True

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_positive(self, "web", self.web)
        refuse_positive(self, "vdb", self.vdb)

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.web * read(episode, "web_searches") + self.vdb * read(episode, "vdb_searches")


class RerankCost(Cost):
    """w · rerank_calls."""

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * read(episode, "rerank_calls")
