"""What two runs were rewarded for, and the first step in which they are no longer the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from agentgrpo.diffing.episodes import first_episode
from agentgrpo.records.run_dir import RunDir

LAST = 10
"""Steps whose mean stands for what a run has come to."""
_TERM = "reward/term/"
_WHOLE = ("reward/mean", "correctness", "cost/episode")


def rewards(a: RunDir, b: RunDir) -> dict[str, Any]:
    """Means over the steps that both have: {"steps": {"a","b","common"}, "last": {tag: {"a","b","difference"}}, "all":
    the same}. last: over the last LAST of them. null where a run does not have the tag."""
    before, now = _by_step(a), _by_step(b)
    common = sorted(before.keys() & now.keys())
    rows = [before[step] for step in common], [now[step] for step in common]
    terms = sorted({tag for side in rows for row in side for tag in row if tag.startswith(_TERM)})
    tags = [tag for tag in (*_WHOLE, *terms) if any(tag in row for side in rows for row in side)]
    return {
        "steps": {"a": len(before), "b": len(now), "common": len(common)},
        "last": {tag: _means(tag, *(side[-LAST:] for side in rows)) for tag in tags},
        "all": {tag: _means(tag, *rows) for tag in tags},
    }


def _means(tag: str, a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    sides = [[row[tag] for row in side if row.get(tag) is not None] for side in (a, b)]
    means = [fmean(values) if values else None for values in sides]
    known = means[0] is not None and means[1] is not None
    return {"a": means[0], "b": means[1], "difference": means[1] - means[0] if known else None}  # type: ignore[operator]


def first_step_apart(a: RunDir, b: RunDir) -> dict[str, Any] | None:
    """The first step that both have and whose metrics are not the same, bit for bit: {"step", "tags": rows as of
    `settings`, "episode": see `first_episode`}; None where there is none."""
    before, now = _by_step(a), _by_step(b)
    for step in sorted(before.keys() & now.keys()):
        if before[step] != now[step]:
            return {"step": step, "tags": _tags(before[step], now[step]), "episode": first_episode(a, b, step)}
    return None


def _tags(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    differ = sorted(tag for tag in a.keys() | b.keys() if (tag in a, a.get(tag)) != (tag in b, b.get(tag)))
    return [{"key": tag, **{name: row[tag] for name, row in (("a", a), ("b", b)) if tag in row}} for tag in differ]


def _by_step(run: RunDir) -> dict[int, dict[str, Any]]:
    return {row["step"]: row for row in run.metrics()}
