"""Random numbers as pure functions of a key: nothing global, the same on every machine and in every order."""

from __future__ import annotations

import random
from hashlib import blake2b


def _digest(key: tuple[object, ...]) -> int:
    # repr keeps (1, "a") and ("1", "a") apart
    return int.from_bytes(blake2b(repr(key).encode(), digest_size=8).digest(), "big")


def uniform(*key: object) -> float:
    """A number in [0, 1) that depends on `key` alone. Parts of a key are str, int or tuples of them."""
    return (_digest(key) >> 11) / (1 << 53)


def generator(*key: object) -> random.Random:
    """A generator of its own for `key`."""
    return random.Random(_digest(key))
