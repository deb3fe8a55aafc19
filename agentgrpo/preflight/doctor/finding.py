"""The result of a check: findings, the figures behind them, and its status."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Level: TypeAlias = Literal["problem", "note"]
Status: TypeAlias = Literal["ok", "note", "problem", "skipped"]
Span: TypeAlias = tuple[str, str]
"""A stretch of text and its style (rich)."""


class Skipped(Exception):
    """Raised by a check that cannot be made or has nothing to check; its text gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """problem: the run would fail or learn nothing. note: the setting may be intended."""

    level: Level
    what: str
    """The finding, with figures."""
    why: str
    """The consequence for the run."""
    key: str
    """The setting to change, as an override if the value is known; "" if no setting would help."""

    def to_json(self) -> dict[str, str]:
        return {"level": self.level, "what": self.what, "why": self.why, "key": self.key}


@dataclass(slots=True)
class CheckNotes:
    """The notes of one check while it runs."""

    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Figures, as JSON values."""
    picture: list[Span] = field(default_factory=list)
    """Tokens of an episode shown to people; empty if the check has no picture."""

    def problem(self, what: str, *, why: str, key: str) -> None:
        self.findings.append(Finding(level="problem", what=what, why=why, key=key))

    def note(self, what: str, *, why: str, key: str) -> None:
        self.findings.append(Finding(level="note", what=what, why=why, key=key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One check, made or skipped."""

    name: str
    status: Status
    seconds: float
    findings: Sequence[Finding] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    picture: Sequence[Span] = ()
    reason: str = ""
    """The reason for skipping the check."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "status": self.status,
            "seconds": round(self.seconds, 3),
            "findings": [finding.to_json() for finding in self.findings],
            "facts": _finite(self.facts),
            "reason": self.reason,
        }


def status_of(findings: Sequence[Finding]) -> Status:
    """The status of the worst finding."""
    levels = {finding.level for finding in findings}
    return "problem" if "problem" in levels else "note" if levels else "ok"


def _finite(value: Any) -> Any:
    """Replace nan and infinity, which JSON lacks, by strings."""
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
