"""Judges: is an answer right, is the evidence enough? Judge models are in judges.llm."""

from agentgrpo.judges.answers import Contains, ExactMatch, GoldAgreement, TokenF1
from agentgrpo.judges.base import (
    AnswerJudge,
    CountingJudge,
    EpisodeJudge,
    EvidenceJudge,
    QueryResults,
    RoundVerdict,
    Verdict,
)
from agentgrpo.judges.composite import Composite
from agentgrpo.judges.evidence import HeuristicEvidence
from agentgrpo.judges.judger import JudgeCase, JudgerJudge, Merged
from agentgrpo.judges.route import Route

__all__ = [
    "AnswerJudge",
    "Composite",
    "Contains",
    "CountingJudge",
    "EpisodeJudge",
    "EvidenceJudge",
    "ExactMatch",
    "GoldAgreement",
    "HeuristicEvidence",
    "JudgeCase",
    "JudgerJudge",
    "Merged",
    "QueryResults",
    "RoundVerdict",
    "Route",
    "TokenF1",
    "Verdict",
]
