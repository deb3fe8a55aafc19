"""A user's function, in a module that imports nothing."""

from __future__ import annotations


def double(number: int) -> int:
    """Twice the number.

    Args:
        number: any whole one
    """
    return 2 * number
