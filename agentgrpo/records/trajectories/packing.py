"""Token ids and logprobs of an episode as text, bit for bit.

An array is "<element>:<base64 of zlib of little-endian elements>"; an element is i (int32), f (float32, where no bit is
lost) or d (float64, which zlib only wraps).
"""

from __future__ import annotations

import base64
import itertools
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from agentgrpo.types import Branch, Segment

_LEVELS = {"i": 1, "f": 1, "d": 0}
"""Element -> how hard zlib tries. Higher levels gain nothing on ids; the mantissas of doubles are noise to it."""


def pack(branches: Sequence[Branch]) -> dict[str, str]:
    """{"ids": of all segments in order, "logprobs": of the sampled ones}."""
    segments = [s for b in branches for s in b.segments]
    logprobs = [x for s in segments for x in s.logprobs or ()]
    return {
        "ids": _encode("i", [t for s in segments for t in s.token_ids]),
        "logprobs": _encode("f" if _fits_float32(logprobs) else "d", logprobs),
    }


def _fits_float32(values: Sequence[float]) -> bool:
    try:
        return list(values) == list(struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}f", *values)))
    except OverflowError:
        return False


def _encode(element: str, values: Sequence[float]) -> str:
    data = zlib.compress(struct.pack(f"<{len(values)}{element}", *values), _LEVELS[element])
    return f"{element}:{base64.b64encode(data).decode()}"


def _decode(text: str) -> tuple[Any, ...]:
    element, _, packed = text.partition(":")
    if element not in ("i", "f", "d"):
        raise ValueError(f"packed elements are i, f or d, not {element!r}")
    data = zlib.decompress(base64.b64decode(packed, validate=True))
    return struct.unpack(f"<{len(data) // struct.calcsize(element)}{element}", data)


def unpack(messages: Sequence[Mapping[str, Any]], tokens: Mapping[str, str]) -> tuple[Branch, ...]:
    """The branches that `pack` was given; `messages` is the line's agent.messages. Raises ValueError, KeyError,
    TypeError, AttributeError, zlib.error or struct.error where the two do not fit together."""
    ids, logprobs = iter(_decode(tokens["ids"])), iter(_decode(tokens["logprobs"]))
    branches: dict[int, list[Segment]] = {}
    for m in messages:
        count = m["num_tokens"]
        token_ids = tuple(itertools.islice(ids, count))
        if len(token_ids) != count:
            raise ValueError("fewer token ids than the messages count")
        segment = Segment(
            role=m["role"],
            token_ids=token_ids,
            sampled=m["sampled"],
            logprobs=tuple(itertools.islice(logprobs, count)) if m["sampled"] else None,
            policy_version=m["policy_version"],
            text=m["content"],
            cut_short=m.get("cut_short", False),
        )
        branches.setdefault(m["branch"], []).append(segment)
    if next(ids, None) is not None or next(logprobs, None) is not None:
        raise ValueError("more tokens than the messages count")
    return tuple(Branch(segments=tuple(segments)) for segments in branches.values())
