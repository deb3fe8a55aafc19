"""The state of an episode: queries, results, evidence grades, counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from agentgrpo.core.types import Citation, Passage
from agentgrpo.environments.search.grammar import Labels, Query, QueryKey
from agentgrpo.judges.base import EvidenceGrade


class OpenedPage(NamedTuple):
    """A request for a page."""

    url: str
    """Without fragment."""
    part: int
    find: str


@dataclass(slots=True, kw_only=True)
class SearchState:
    """The state of one episode. `counts` holds the metrics that are counted as they happen, by metric name."""

    question: str
    previous_queries: list[str] = field(default_factory=list)
    """Unique, as first written, in order."""
    retrieved_docs: list[Passage] = field(default_factory=list)
    """The policy's working set: grows with every round, replaced by a rerank."""
    evidence_score: float = 0.0
    """Score in [0, 1] of the last round that showed something."""
    evidence_sufficient: bool = False
    """The verdict on that round."""
    evidence_gain_total: float = 0.0
    search_rounds: int = 0
    """Rounds that sent a query, whatever came back; a rerank is not a round."""
    citations: tuple[Citation, ...] = ()

    asked: dict[QueryKey, tuple[Passage, ...]] = field(default_factory=dict)
    """Results of each query, before deduplication."""
    labels: Labels = field(default_factory=Labels)
    subquestions: dict[str, str] = field(default_factory=dict)
    """Active subquestions: text by id."""
    covered: set[str] = field(default_factory=set)
    """Ids of subquestions for which a query found something."""
    fetched: dict[OpenedPage, Passage] = field(default_factory=dict)
    """Request -> the page that it opened."""
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def uncovered(self) -> dict[str, str]:
        return {id_: text for id_, text in self.subquestions.items() if id_ not in self.covered}

    def ask(self, query: Query) -> None:
        """Note that `query` is being sent."""
        if query.key[1] not in {words for _, words, _ in self.asked}:
            self.previous_queries.append(query.text)
        self.asked[query.key] = ()

    def judge(self, verdict: EvidenceGrade) -> float:
        """Record the verdict on a round that showed something; return the gain max(0, its score − the score before)."""
        gain = max(0.0, verdict.score - self.evidence_score)
        self.evidence_gain_total += gain
        self.evidence_score = verdict.score
        self.evidence_sufficient = verdict.sufficient
        return gain


# --- Pure rules over counts: when an answer is accepted, how much may be searched, when searching stops.


class Ruling(StrEnum):
    """The ruling on an answer that the policy offers."""

    DIRECT = "direct"
    """Accepted without a search: the policy decided so, and the rules allow it."""
    ACCEPT = "accept"
    """Accepted: the evidence is sufficient, or no evidence is required."""
    FORCE = "force"
    """Accepted although the evidence is insufficient: the limit of rejections is reached."""
    REJECT = "reject"


def rule_on_answer(
    *,
    decided_to_answer: bool,
    search_rounds: int,
    num_subquestions: int,
    evidence_sufficient: bool,
    rejections: int,
    max_rejections: int,
    require_evidence: bool,
    allow_direct: bool,
) -> Ruling:
    """Return the ruling. A direct answer needs an explicit decision, no search before it and no active subquestion."""
    if allow_direct and decided_to_answer and search_rounds == 0 and num_subquestions == 0:
        return Ruling.DIRECT
    if evidence_sufficient or not require_evidence:
        return Ruling.ACCEPT
    return Ruling.FORCE if rejections >= max_rejections else Ruling.REJECT


def effective_search_limit(*, base: int, per_subquestion: int, cap: int, num_subquestions: int) -> int:
    """Return the queries that an episode may send: base, plus an allowance for every subquestion after the first, up to
    `cap`; never less than base."""
    return max(base, min(base + per_subquestion * max(0, num_subquestions - 1), cap))


def on_plateau(*, gain: float, sufficient: bool, min_gain: float | None, requires_sufficient: bool) -> bool:
    """Return whether the last round added too little evidence for another to be worth it; min_gain None = never."""
    return min_gain is not None and gain < min_gain and (sufficient or not requires_sufficient)
