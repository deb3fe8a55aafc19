"""Compares two recorded sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def first_difference(a: Sequence[Any], b: Sequence[Any]) -> int | None:
    """Position of the first element that differs, or the end of the shorter sequence; None if they are equal."""
    if a == b:
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
