"""Where two recorded sequences part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def first_difference(a: Sequence[Any], b: Sequence[Any]) -> int | None:
    """Position of the first element that differs, the end of the shorter one among them; None where they are equal."""
    if a == b:
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
