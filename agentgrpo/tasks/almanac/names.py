"""Names of the world's people, places and things: two syllables each ("Velmor"), sorted into three pools.

A name's pool depends on its spelling alone, never on a world seed: whatever world a policy was trained in, it has never
met a name of the test pool."""

from __future__ import annotations

import json
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Literal

Pool = Literal["train", "dev", "test"]
SHARES: dict[Pool, float] = {"test": 0.20, "dev": 0.06, "train": 0.74}


def pool_of(name: str) -> Pool:
    u = int.from_bytes(blake2b(name.encode(), digest_size=8, person=b"almanac-name").digest(), "big") / (1 << 64)
    if u < SHARES["test"]:
        return "test"
    return "dev" if u < SHARES["test"] + SHARES["dev"] else "train"


@cache
def syllables() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(first, second) of which names are made."""
    read = json.loads((Path(__file__).parent / "names.json").read_text(encoding="utf-8"))
    return tuple(read["first"]), tuple(read["second"])


@cache
def names(pool: Pool) -> tuple[str, ...]:
    """Every name of the pool, in alphabetical order."""
    firsts, seconds = syllables()
    return tuple(sorted(a + b for a in firsts for b in seconds if pool_of(a + b) == pool))
