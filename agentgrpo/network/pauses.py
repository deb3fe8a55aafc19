"""How long to wait before an attempt is repeated: no clock and no global random numbers in it."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from email.utils import parsedate_to_datetime


def pause_s(
    seed: str, attempt: int, *, backoff_s: float, retry_after: str | None = None, date: str | None = None
) -> float:
    """Seconds before the attempt after `attempt` (from 0): what the server's Retry-After asks for, else
    backoff_s * 2^attempt, half of it jitter: a pure function of `seed`, so that a run repeats."""
    asked_s = retry_after_s(retry_after, date)
    if asked_s is not None:
        return asked_s
    digest = hashlib.blake2b(f"{seed} {attempt}".encode(), digest_size=8).digest()
    jitter = int.from_bytes(digest, "big") / 2**64
    return backoff_s * 2.0 ** min(attempt, 16) * (1 + jitter) / 2


def retry_after_s(retry_after: str | None, date: str | None = None) -> float | None:
    """The seconds of a Retry-After header (RFC 9110, 10.2.3); None where it has none that are to come. One that names
    a point in time is read by the clock of who sent it: `date`, the Date header of the same response."""
    if retry_after is None:
        return None
    if retry_after.isascii() and retry_after.isdecimal():
        return float(retry_after)
    with suppress(ValueError, TypeError, OverflowError):  # no date; or one with a time zone, and one without
        seconds = (parsedate_to_datetime(retry_after) - parsedate_to_datetime(date or "")).total_seconds()
        return seconds if seconds >= 0 else None
    return None
