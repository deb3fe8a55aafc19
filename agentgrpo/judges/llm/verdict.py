"""A judge model's verdict: one JSON object, exactly as asked for, or a JudgeError."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentgrpo.errors import JudgeError

BAD_VERDICT = "bad_verdict"
"""JudgeError.kind of what is no verdict."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a model says of an answer: grades in [0, 1], one for each answer it was shown."""

    scores: tuple[float, ...]
    reason: str


def read_verdict(text: str, nonce: str, fields: Sequence[str] = ("score",)) -> Opinion:
    """`{"nonce": nonce, <each of fields>: number in [0, 1], "reason": text}` and nothing else: no other key, none
    twice, no word before or after. A wrong nonce is the mark of a verdict that was copied from somewhere."""
    row = _row(text, nonce, fields)
    scores = [row[field] for field in fields]
    if any(type(s) not in (int, float) or not (math.isfinite(s) and 0 <= s <= 1) for s in scores):
        raise _bad(text, "a grade must be a number from 0 to 1")
    return Opinion(tuple(float(s) for s in scores), row["reason"][:500])


def read_choice(text: str, nonce: str, field: str, allowed: Sequence[str]) -> tuple[str, str]:
    """(the choice, the reason) of `{"nonce": nonce, field: one of allowed, "reason": text}`, as strict as
    `read_verdict`: a choice is one of `allowed` letter for letter, so "INVALID" is never taken for a "VALID"."""
    row = _row(text, nonce, (field,))
    if row[field] not in allowed:
        raise _bad(text, f"{field} must be {' or '.join(allowed)}")
    return row[field], row["reason"][:500]


def one_object(text: str) -> Any:
    """The JSON value that `text` is, no key twice in any object of it, no word before or after. Raises ValueError."""
    try:
        return json.loads(text.strip(), object_pairs_hook=_distinct, parse_constant=_refuse)
    except RecursionError as e:
        raise ValueError("it is nested too deeply") from e


def _row(text: str, nonce: str, fields: Sequence[str]) -> dict[str, Any]:
    try:
        row = one_object(text)
    except ValueError as e:
        raise _bad(text, f"it is not one JSON object ({e})") from e
    if not isinstance(row, dict) or row.keys() != {"nonce", *fields, "reason"}:
        raise _bad(text, f"its keys must be nonce, {', '.join(fields)} and reason")
    if row["nonce"] != nonce:
        raise _bad(text, "its nonce is not the one of this question")
    if not isinstance(row["reason"], str):
        raise _bad(text, "the reason must be a text")
    return row


def _bad(text: str, problem: str) -> JudgeError:
    return JudgeError(f"the judge model gave no verdict: {problem}: {text[:120]!r}", kind=BAD_VERDICT)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ValueError("a key stands twice")
    return row


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")
