"""What `make test-slow` does and `make test` does not: more generated examples, and a look at the clock, which says
little on a machine that is busy. pytest --hypothesis-profile=thorough; see conftest.py."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

QUICK, THOROUGH = 20, 100
"""Examples that a property is tried on, where it names no number itself."""


def is_thorough() -> bool:
    return settings().max_examples == THOROUGH


def examples(count: int) -> int:
    """How many to generate where `count` are thorough: a tenth is quick."""
    return count if is_thorough() else max(10, count // 10)


def siblings(values: Iterable[Any], quick: int) -> list[Any]:
    """For parametrize: all but the first `quick` of the values, or of the tuples of values, are marked slow."""
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*row, marks=[pytest.mark.slow] * (i >= quick)) for i, row in enumerate(rows)]


def late(began: float, seconds: float) -> bool:
    """Whether so many seconds have gone by since time.monotonic() was `began`. Mark the test `clock`."""
    return is_thorough() and time.monotonic() - began >= seconds
