"""Reward terms by their names in YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentgrpo.rewards import citations, costs, memory, special, terms, tools
from agentgrpo.rewards.base import BranchTerm, RewardTerm, TurnTerm
from agentgrpo.rewards.reward import Reward

TERMS: Mapping[str, Callable[..., RewardTerm]] = {
    "correctness": terms.Correctness,
    "citation_support": citations.CitationSupport,
    "unsupported_claim": terms.UnsupportedClaim,
    "fetch_usefulness": terms.FetchUsefulness,
    "format": terms.FormatChecks,
    "search_quality": terms.SearchQuality,
    "subquestion_coverage": terms.SubquestionCoverage,
    "evidence_gain": terms.EvidenceGain,
    "early_stop_bonus": terms.EarlyStopBonus,
    "answer_when_evidence_insufficient": terms.AnswerWhenEvidenceInsufficient,
    "forced_final_answer": terms.ForcedFinalAnswer,
    "search_budget_exhausted": terms.SearchBudgetExhausted,
    "per_search": costs.PerSearch,
    "unnecessary_search": costs.UnnecessarySearch,
    "duplicate_query": costs.DuplicateQuery,
    "budget": costs.BudgetPenalty,
    "unnecessary_fetch": costs.UnnecessaryFetch,
    "retriever_cost": costs.RetrieverCost,
    "rerank_cost": costs.RerankCost,
    "tool_success": tools.ToolSuccess,
    "milestones": tools.Milestones,
    "tool_cost": tools.ToolCost,
    "invalid_calls": tools.InvalidCalls,
    "bad_format": tools.BadFormat,
    "overlong": terms.Overlong,
    "call_success": memory.CallSuccess,
    "compression": memory.Compression,
    "validity": memory.Validity,
    "evidence": memory.Evidence,
    "memory_format": memory.MemoryFormat,
    "stray_text": memory.StrayText,
    "search_r1_structure": special.SearchR1Structure,
    "artist_answer": special.ArtistAnswer,
    "artist_format": special.ArtistFormat,
    "artist_tools": special.ArtistTools,
}

__all__ = ["TERMS", "BranchTerm", "Reward", "RewardTerm", "TurnTerm"]
