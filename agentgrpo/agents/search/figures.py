"""What eval.json reports of search agents: right answers, and what was searched for them."""

from __future__ import annotations

from agentgrpo.agents.base import Column, Figures, correctness, metric
from agentgrpo.types import Episode, RewardResult


def _per_query(name: str) -> Column:
    """The share of the searches sent that `name` counts; 0.0 without any."""

    def share(episode: Episode, reward: RewardResult | None) -> float:
        m = episode.metrics
        queries = m.get("web_searches", 0.0) + m.get("vdb_searches", 0.0)
        return m.get(name, 0.0) / queries if queries else 0.0

    return share


SEARCH_FIGURES = Figures(
    columns={
        "correctness": correctness,
        "search_rounds": metric("search_rounds"),
        "web_searches": metric("web_searches"),
        "vdb_searches": metric("vdb_searches"),
        "rerank_calls": metric("rerank_calls"),
        "web_fraction": _per_query("web_searches"),
        "rerank_rate": _per_query("rerank_calls"),
        "evidence_score_final": metric("evidence_score_final"),
    },
    headline=("correctness", "search_rounds", "web_searches", "vdb_searches", "rerank_calls", "cost"),
    by_kind=("correctness", "search_rounds", "web_searches", "rerank_calls"),
    quality="correctness",
    thrift="search_rounds",
    labels={"search_rounds": "rounds", "web_searches": "web", "vdb_searches": "vdb", "rerank_calls": "rerank"},
    counts={"web": "web_calls", "vdb": "vdb_calls", "rerank": "rerank_calls"},
    prices={"web": 0.05, "vdb": 0.01, "rerank": 0.02},
)
