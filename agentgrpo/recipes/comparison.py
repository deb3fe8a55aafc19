"""A number that was computed against what it should be, and many of them as a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Keys = Mapping[str, Any]
"""Keys of the algorithm node."""


class Comparison(NamedTuple):
    """Of one variant. Errors are relative: to the largest number of the reference, values below 1 to 1."""

    part: str
    """losses | advantages | updates"""
    keys: Keys
    value_error: float
    gradient_error: float | None
    """None = it has no gradient."""
    tolerance: float

    @property
    def equal(self) -> bool:
        # Both are false for NaN.
        return self.value_error <= self.tolerance and (self.gradient_error or 0.0) <= self.tolerance

    @property
    def name(self) -> str:
        """As overrides of the command line."""
        return " ".join(f"algorithm.{key}={_text(value)}" for key, value in self.keys.items())

    def state(self) -> dict[str, Any]:
        """For JSON; an error that is not finite is null."""
        return {
            "part": self.part,
            "keys": dict(self.keys),
            "value_error": _number(self.value_error),
            "gradient_error": _number(self.gradient_error),
            "tolerance": self.tolerance,
            "equal": self.equal,
        }


def relative_error(found: Sequence[float], expected: Sequence[float], *, least: float = 0.0) -> float:
    """The largest difference over the largest expected number, which counts as `least` at least; NaN where one is."""
    difference = worst(abs(f - e) for f, e in zip(found, expected, strict=True))
    scale = max(least, worst(map(abs, expected)))
    return difference / scale if scale else math.inf if difference else 0.0


def worst(errors: Iterable[float]) -> float:
    """The largest; NaN is larger than anything."""
    return max(errors, key=lambda error: (error != error, error))


SHOWN: Mapping[str, Sequence[str]] = {
    "losses": ("loss", "aggregation", "kl", "kl_importance", "correction"),
    "advantages": ("advantage",),
    "updates": ("loss",),
}
"""part -> the keys whose options have a line of the table each."""


def table(comparisons: Sequence[Comparison]) -> list[str]:
    """A line per part and option: how many variants have it, and their worst errors."""
    rows: dict[tuple[str, str], list[Comparison]] = {}
    for part, keys in SHOWN.items():
        for key in keys:
            for c in comparisons:
                if c.part == part and key in c.keys:
                    rows.setdefault((part, f"{key}={_text(c.keys[key])}"), []).append(c)
    lines = [f"{'part':<12}{'option':<34}{'variants':>8}{'value':>10}{'gradient':>10}"]
    for (part, option), found in rows.items():
        gradients = [c.gradient_error for c in found if c.gradient_error is not None]
        errors = [f"{worst(c.value_error for c in found):.1e}", f"{worst(gradients):.1e}" if gradients else "-"]
        mark = "" if all(c.equal for c in found) else "  not equal"
        lines.append(f"{part:<12}{option:<34}{len(found):>8}{errors[0]:>10}{errors[1]:>10}{mark}")
    return lines


def _text(value: object) -> str:
    """As it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(error: float | None) -> float | None:
    """As JSON has it: null where it is no number."""
    return error if error is not None and math.isfinite(error) else None
