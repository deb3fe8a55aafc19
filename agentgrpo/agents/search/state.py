"""What an episode knows: asked, found, judged, counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from agentgrpo.agents.search.actions import Query, QueryKey
from agentgrpo.agents.search.labels import Labels
from agentgrpo.judges.base import RoundVerdict
from agentgrpo.types import Citation, Passage


@dataclass(slots=True, kw_only=True)
class SearchState:
    """The state of one episode. `counts` holds the metrics that are counted as they happen, by metric name."""

    question: str
    previous_queries: list[str] = field(default_factory=list)
    """Unique, as first written, in order."""
    retrieved_docs: list[Passage] = field(default_factory=list)
    """What the policy works with: grows with every round, replaced by a rerank."""
    evidence_score: float = 0.0
    """In [0, 1]: of the last round that showed something."""
    evidence_sufficient: bool = False
    """Of the same round."""
    evidence_gain_total: float = 0.0
    search_rounds: int = 0
    """Rounds that sent a query, whatever came back; a rerank is none."""
    citations: tuple[Citation, ...] = ()

    asked: dict[QueryKey, tuple[Passage, ...]] = field(default_factory=dict)
    """What each query found, before deduplication."""
    labels: Labels = field(default_factory=Labels)
    subquestions: dict[str, str] = field(default_factory=dict)
    """Active ones: text by id."""
    covered: set[str] = field(default_factory=set)
    """Ids of subquestions for which a query found something."""
    fetched: dict[str, Passage] = field(default_factory=dict)
    """Pages by URL without fragment."""
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def uncovered(self) -> dict[str, str]:
        return {id_: text for id_, text in self.subquestions.items() if id_ not in self.covered}

    def ask(self, query: Query) -> None:
        """Note that `query` is being sent."""
        if query.key[1] not in {words for _, words, _ in self.asked}:
            self.previous_queries.append(query.text)
        self.asked[query.key] = ()

    def judge(self, verdict: RoundVerdict) -> float:
        """Take in the verdict on a round that showed something; the gain max(0, its score − the score before)."""
        gain = max(0.0, verdict.score - self.evidence_score)
        self.evidence_gain_total += gain
        self.evidence_score = verdict.score
        self.evidence_sufficient = verdict.sufficient
        return gain
