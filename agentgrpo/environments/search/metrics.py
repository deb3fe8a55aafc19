"""An episode's metrics: a pure function of what happened, every name always present."""

from __future__ import annotations

from agentgrpo.core.types import Episode, Outcome
from agentgrpo.environments.figures import Figures
from agentgrpo.environments.search.grammar import document_id, page_of
from agentgrpo.environments.search.state import SearchState
from agentgrpo.judges.evidence.gold import supporting_of

COUNTED = (
    "search_queries",
    "search_cache_hits",
    "automatic_searches",
    "repeated_search_queries",
    "search_limit_hits",
    "answer_rejections",
    "direct_answers",
    "evidence_sufficient_rounds",
    "evidence_insufficient_rounds",
    "duplicate_search_results_removed",
    "web_searches",
    "vdb_searches",
    "web_served",
    "vdb_served",
    "web_calls",
    "vdb_calls",
    "rerank_requested",
    "rerank_calls",
    "rerank_skipped",
    "early_stops",
    "format_error_turns",
    "forced_final_answer",
    "answer_allowed",
    "tool_turns",
)
"""Counted as they happen. search_queries: queries sent, cached ones included; repeated and over-limit queries are not
sent. automatic_searches: rounds that the environment made by itself at a dead end; the policy gets no credit for their
gain. web_searches + vdb_searches = web_served + vdb_served = search_queries; the first pair counts the retriever
requested, the second the one that answered. web_calls, vdb_calls: calls of a retriever, cached or not. A failed web
search is a call of each; a search over the episode's budget is no call. rerank_requested = rerank_calls +
rerank_skipped, one call for each query. search_limit_hits: queries refused at the limit. forced_final_answer: the
answer was given when requested at a dead end. answer_allowed: accepted by the rules, not by force. tool_turns: turns
that searched, reranked or fetched."""

OF_CONTEXTS = ("contexts", "summaries", "recalled_searches")
"""With environment.context: contexts of the episode, requested summaries, and repeated searches and pages of an older
context that were shown again without a new call."""


def episode_metrics(state: SearchState, *, limit: int, answered: bool) -> dict[str, float]:
    """limit: the current effective search limit. rounds_used is search_rounds under the name that rewards use.

    search_quality_score := evidence_sufficient_rounds / search_rounds; 0 without a round
    repeated_query_ratio := repeated / (sent + repeated + refused for the limit)
    subquestion_coverage_ratio := covered / active subquestions; 1 without any
    budget_used_ratio := search_queries / limit
    web_fraction, rerank_rate := shares of the searches sent; 0 without any
    fetched_pages := pages opened; each part of a page counts
    useful_fetched_pages := pages that are a cited document or have its URL; other pages are unnecessary
    """
    counts, rounds = state.counts, state.search_rounds
    metrics = {name: float(counts[name]) for name in COUNTED}
    wished = counts["search_queries"] + counts["repeated_search_queries"] + counts["search_limit_hits"]
    cited = state.labels.cited(state.citations)
    cited_pages = {page_of(p.url) for p in cited} | {document_id(p) for p in cited}
    opened = state.fetched.items()
    useful = sum(not cited_pages.isdisjoint((of.url, page_of(page.url), document_id(page))) for of, page in opened)
    active = len(state.subquestions)
    queries = counts["web_searches"] + counts["vdb_searches"]
    unsupported = answered and not state.evidence_sufficient and not counts["direct_answers"]
    return metrics | {
        "search_rounds": float(rounds),
        "web_fraction": counts["web_searches"] / queries if queries else 0.0,
        "rerank_rate": counts["rerank_calls"] / queries if queries else 0.0,
        "rounds_used": float(rounds),
        "fetched_pages": float(len(state.fetched)),
        "useful_fetched_pages": float(useful),
        "unnecessary_fetch_count": float(len(state.fetched) - useful),
        "active_subquestions": float(active),
        "subquestion_coverage_ratio": 1 - len(state.uncovered) / active if active else 1.0,
        "search_quality_score": counts["evidence_sufficient_rounds"] / rounds if rounds else 0.0,
        "evidence_score_final": float(state.evidence_score),
        "evidence_gain_total": float(state.evidence_gain_total),
        "final_evidence_sufficient": float(state.evidence_sufficient),
        "plateau_early_stop": float(counts["early_stops"] > 0),
        "effective_search_limit": float(limit),
        "budget_used_ratio": counts["search_queries"] / limit,
        "repeated_query_ratio": counts["repeated_search_queries"] / max(wished, 1),
        "citation_count": float(len(state.citations)),
        "answer_when_evidence_insufficient": float(unsupported),
        "search_budget_exhausted_without_answer": float(not answered and counts["search_queries"] >= limit),
    }


# --- Retrieval and citations, for tasks that name the passages that prove the answer (metadata.supporting). They
# serve evaluation only: no preset rewards them.

GOLD = (
    *("has_gold", "retrieval_recall", "retrieval_recall_round_1", "retrieval_recall_round_2"),
    *("citation_recall", "citation_precision", "has_gold_and_citations"),
    *("has_gold_and_answer", "cites_unsupported"),
)


def gold_metrics(episode: Episode) -> dict[str, float]:
    """Return the GOLD metrics by name; {} if the task names no supporting passages.

    retrieval_recall := supporting passages shown / supporting passages; _round_N: shown by the end of round N
    citation_recall := supporting passages cited / supporting passages
    citation_precision := supporting passages cited / passages cited; 0 without any (has_gold_and_citations)
    cites_unsupported := the answer cites a passage that is not supporting
    """
    gold = supporting_of(episode.task)
    if not gold:
        return {}
    rounds: dict[int, set[str]] = {}
    for record in episode.tool_records:
        if record.name == "search" and record.outcome is Outcome.SUCCESS:
            rounds.setdefault(record.turn, set()).update(record.result_ids)
    first, second = [*rounds.values(), set[str](), set[str]()][:2]
    cited = {citation.doc_id for citation in episode.citations}
    answered = episode.answer is not None
    return {
        "has_gold": 1.0,
        "retrieval_recall": len(gold.intersection(episode.retrieved_ids)) / len(gold),
        "retrieval_recall_round_1": len(gold & first) / len(gold),
        "retrieval_recall_round_2": len(gold & (first | second)) / len(gold),
        "citation_recall": len(gold & cited) / len(gold),
        "citation_precision": len(gold & cited) / max(len(cited), 1),
        "has_gold_and_citations": float(bool(cited)),
        "has_gold_and_answer": float(answered),
        "cites_unsupported": float(answered and bool(cited - gold)),
    }


# --- The figures of the search environment in eval.json: right answers, and the searches made for them.


SEARCH_FIGURES = Figures(
    columns=(
        *("search_rounds", "web_searches", "vdb_searches", "rerank_calls"),
        *("web_fraction", "rerank_rate", "evidence_score_final"),
    ),
    headline=("correctness", "search_rounds", "web_searches", "vdb_searches", "rerank_calls", "cost"),
    by_kind=("correctness", "search_rounds", "web_searches", "rerank_calls"),
    quality="correctness",
    spending="search_rounds",
    labels={"search_rounds": "rounds", "web_searches": "web", "vdb_searches": "vdb", "rerank_calls": "rerank"},
    counts={"web": "web_calls", "vdb": "vdb_calls", "rerank": "rerank_calls"},
    prices={"web": 0.05, "vdb": 0.01, "rerank": 0.02},
    ratios={
        "citations": {
            "precision": ("citation_precision", "has_gold_and_citations"),
            "recall": ("citation_recall", "has_gold"),
            "unsupported": ("cites_unsupported", "has_gold_and_answer"),
        },
        "retrieval": {
            "recall": ("retrieval_recall", "has_gold"),
            "recall_round_1": ("retrieval_recall_round_1", "has_gold"),
            "recall_round_2": ("retrieval_recall_round_2", "has_gold"),
        },
        "claims": {
            name: (f"criterion/claims_{name}", "criterion/claims") for name in ("supported", "unsupported", "uncited")
        },
    },
)
