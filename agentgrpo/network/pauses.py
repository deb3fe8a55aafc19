"""How long to wait before an attempt is repeated: no clock and no global random numbers in it."""

from __future__ import annotations

import hashlib


def pause_s(seed: str, attempt: int, *, backoff_s: float, retry_after: str | None = None) -> float:
    """Seconds before the attempt after `attempt` (from 0): what the server's Retry-After asks for, else
    backoff_s * 2^attempt, half of it jitter: a pure function of `seed`, so that a run repeats."""
    if retry_after is not None and retry_after.isdecimal():
        return float(retry_after)
    digest = hashlib.blake2b(f"{seed} {attempt}".encode(), digest_size=8).digest()
    jitter = int.from_bytes(digest, "big") / 2**64
    return backoff_s * 2.0 ** min(attempt, 16) * (1 + jitter) / 2
