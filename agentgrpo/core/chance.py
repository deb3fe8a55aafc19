"""Random numbers as pure functions of a key: no global state, equal on every machine and in every order of calls."""

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
    """Return a new generator seeded by `key`."""
    return random.Random(_digest(key))
