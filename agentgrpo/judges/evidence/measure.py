"""How well an evidence judge tells sufficient from insufficient evidence: its scores against gold support."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agentgrpo.core.types import Episode
from agentgrpo.judges.evidence.gold import was_supported


class JudgedEvidence(NamedTuple):
    """The evidence of one episode: the verdict after its last round, and the gold label."""

    score: float
    sufficient: bool
    supported: bool
    """All supporting passages were shown."""


def judged_evidence(episodes: Iterable[Episode]) -> list[JudgedEvidence]:
    """The judged evidence of the episodes that did not fail, were shown passages, and have verdict and gold support."""
    found = []
    for episode in episodes:
        score, supported = episode.metrics.get("evidence_score_final"), was_supported(episode)
        if episode.failure is None and score is not None and supported is not None:
            sufficient = episode.metrics.get("final_evidence_sufficient", 0.0) > 0
            found.append(JudgedEvidence(score, sufficient, supported))
    return found


def auc(judged: Sequence[JudgedEvidence]) -> float | None:
    """The area under the ROC curve: how often a supported episode has a higher score than an unsupported one, a tie
    counting half (Mann-Whitney). None if either kind is missing."""
    yes, no = (sorted(row.score for row in judged if row.supported is kind) for kind in (True, False))
    if not (yes and no):
        return None
    below = sum(bisect_left(no, score) + bisect_right(no, score) for score in yes)
    return below / (2 * len(yes) * len(no))


def evidence_figures(judged: Sequence[JudgedEvidence]) -> dict[str, float | int | None]:
    """`auc`; the numbers of `supported` and `unsupported` episodes; and the share of each kind that was judged
    sufficient, None if there are no such episodes. {} if nothing was judged."""
    if not judged:
        return {}
    figures: dict[str, float | int | None] = {"auc": auc(judged)}
    for name, kind in (("supported", True), ("unsupported", False)):
        rows = [row.sufficient for row in judged if row.supported is kind]
        figures |= {name: len(rows), f"sufficient_where_{name}": sum(rows) / len(rows) if rows else None}
    return figures
