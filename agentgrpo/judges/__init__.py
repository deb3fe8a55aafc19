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
from agentgrpo.judges.choice import Choice
from agentgrpo.judges.composite import Composite
from agentgrpo.judges.evidence import HeuristicEvidence
from agentgrpo.judges.judger import JudgeCase, JudgerJudge, Merged
from agentgrpo.judges.keywords import Keywords
from agentgrpo.judges.questions import Questions
from agentgrpo.judges.route import Route

__all__ = [
    "AnswerJudge",
    "Choice",
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
    "Keywords",
    "Merged",
    "QueryResults",
    "Questions",
    "RoundVerdict",
    "Route",
    "TokenF1",
    "Verdict",
]
