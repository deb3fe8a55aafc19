"""Whether the evidence judge tells found from missing evidence, for tasks that list their supporting passages."""

from __future__ import annotations

from agentgrpo.judges.evidence.measure import evidence_figures, judged_evidence
from agentgrpo.preflight.doctor.case import Case
from agentgrpo.preflight.doctor.finding import CheckNotes, Skipped

LEAST = 8
"""Least number of episodes with support, and of episodes without it, for the AUC to mean anything."""
POOR = 0.7
"""An AUC below this is a poor judge; 0.5 is chance."""


def look_at_evidence(case: Case, found: CheckNotes) -> None:
    """Compare the judge's score after the last round of each sampled episode with whether all support was shown."""
    figures = evidence_figures(judged_evidence(case.episodes))
    if not figures:
        raise Skipped("no task says which passages prove its answer (metadata.supporting), or nothing was searched")
    found.facts |= {name: round(v, 3) if isinstance(v, float) else v for name, v in figures.items()}
    auc = figures["auc"]
    if auc is None or min(figures["supported"] or 0, figures["unsupported"] or 0) < LEAST:
        return
    if auc < POOR:
        found.note(
            f"the evidence judge tells found from not found with an AUC of {auc:.2f}",
            why="the gate rejects answers, and evidence_gain pays for searches, by its word",
            key="environment.evidence",
        )
