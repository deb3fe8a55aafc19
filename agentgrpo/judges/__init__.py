"""Judges: is an answer right, is the evidence enough?"""

from agentgrpo.judges.answers import Contains, ExactMatch, GoldAgreement, TokenF1
from agentgrpo.judges.base import AnswerJudge, EvidenceJudge, QueryResults, RoundVerdict, Verdict
from agentgrpo.judges.composite import Composite
from agentgrpo.judges.evidence import HeuristicEvidence

__all__ = [
    "AnswerJudge",
    "Composite",
    "Contains",
    "EvidenceJudge",
    "ExactMatch",
    "GoldAgreement",
    "HeuristicEvidence",
    "QueryResults",
    "RoundVerdict",
    "TokenF1",
    "Verdict",
]
