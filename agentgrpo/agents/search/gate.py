"""What an answer needs, how much may be searched and when searching stops: pure rules over counts."""

from __future__ import annotations

from enum import StrEnum


class Ruling(StrEnum):
    """What becomes of an answer that the policy offers."""

    DIRECT = "direct"
    """Accepted without a search: the policy decided so, and nothing speaks against it."""
    ACCEPT = "accept"
    """Accepted: the evidence is sufficient, or nobody asks for evidence."""
    FORCE = "force"
    """Accepted although the evidence is insufficient: it has been rejected often enough."""
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
    """A direct answer only before any search, by explicit decision and without an active subquestion."""
    if allow_direct and decided_to_answer and search_rounds == 0 and num_subquestions == 0:
        return Ruling.DIRECT
    if evidence_sufficient or not require_evidence:
        return Ruling.ACCEPT
    return Ruling.FORCE if rejections >= max_rejections else Ruling.REJECT


def effective_search_limit(*, base: int, per_subquestion: int, cap: int, num_subquestions: int) -> int:
    """Queries an episode may send: base, plus an allowance for every subquestion after the first, up to `cap`; never
    less than base."""
    return max(base, min(base + per_subquestion * max(0, num_subquestions - 1), cap))


def on_plateau(*, gain: float, sufficient: bool, min_gain: float | None, requires_sufficient: bool) -> bool:
    """Whether the last round added so little evidence that another is not worth it; min_gain None = never."""
    return min_gain is not None and gain < min_gain and (sufficient or not requires_sufficient)
