"""Reads a judge model's verdict: one JSON object with the requested fields. JudgeError says why a reply is invalid.

    read_verdict    strict: the object and nothing else, with the nonce
    read_ordinary   the object amid reasoning, a code fence and sentences, as servers reply

Both prefer no grade to a wrong one. An ordinary reply may quote the answer, so a verdict in the reply can be the
answer's. Three rules exclude such a verdict: all grades in the reply are equal; no brace is left over, since it could
belong to a broken object around a quoted one; and a verdict with a grade above 0 does not occur in the texts shown.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgrpo.core.errors import JudgeError
from agentgrpo.judges.llm.prompt import neutralise

BAD_VERDICT = "bad_verdict"
"""JudgeError.kind of a reply that is not a valid verdict."""
MAX_REASON = 500
"""Maximum characters of a reason; the rest is cut."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """A model's opinion: grades in [0, 1], one for each answer it was shown or, with criteria, for each criterion."""

    scores: tuple[float, ...]
    reason: str


def _bad(text: str, problem: str) -> JudgeError:
    return JudgeError(f"the judge model gave no verdict: {problem}: {text[:120]!r}", kind=BAD_VERDICT)


# --- Strict: the object and nothing else.


def read_verdict(text: str, nonce: str, fields: Sequence[str] = ("score",)) -> Opinion:
    """Read `{"nonce": nonce, <each of fields>: number in [0, 1], "reason": text}` and nothing else: no other key, no
    key twice, no word before or after. A wrong nonce shows that the verdict was copied from elsewhere."""
    row = _row(text, nonce, fields)
    return Opinion(tuple(_grade(text, row[field]) for field in fields), row["reason"][:MAX_REASON])


def read_choice(text: str, nonce: str, field: str, allowed: Sequence[str]) -> tuple[str, str]:
    """(the choice, the reason) of `{"nonce": nonce, field: one of allowed, "reason": text}`, as strict as
    `read_verdict`. The choice must equal one of `allowed` exactly, so "INVALID" is never taken for "VALID"."""
    row = _row(text, nonce, (field,))
    if row[field] not in allowed:
        raise _bad(text, f"{field} must be {' or '.join(allowed)}")
    return row[field], row["reason"][:MAX_REASON]


def one_object(text: str) -> Any:
    """Parse `text` as one JSON value without repeated keys, with no word before or after it. Raises ValueError."""
    try:
        return json.loads(text.strip(), object_pairs_hook=_distinct, parse_constant=_refuse)
    except RecursionError as e:
        raise ValueError("it is nested too deeply") from e


def _row(text: str, nonce: str, fields: Sequence[str]) -> dict[str, Any]:
    try:
        row = one_object(text)
    except ValueError as e:
        raise _bad(text, f"the reply is not one JSON object ({e})") from e
    if not isinstance(row, dict) or row.keys() != {"nonce", *fields, "reason"}:
        raise _bad(text, f"its keys must be nonce, {', '.join(fields)} and reason")
    if row["nonce"] != nonce:
        raise _bad(text, "its nonce is not the one of this question")
    if not isinstance(row["reason"], str):
        raise _bad(text, "the reason must be a text")
    return row


def _grade(text: str, value: Any) -> float:
    if type(value) not in (int, float) or not (math.isfinite(value) and 0 <= value <= 1):
        raise _bad(text, f"a grade must be a number from 0 to 1, not {str(value)[:40]!r}")
    return float(value)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ValueError("a key stands twice")
    return row


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")


# --- Ordinary: the object with any text around it.

_OPENS = re.compile(r"<(?:think|thinking|thought|reasoning)>|\[THINK\]", re.IGNORECASE)
_CLOSES = re.compile(r"</(?:think|thinking|thought|reasoning)>|\[/THINK\]", re.IGNORECASE)
_ENDLESS = "its reasoning does not end; a larger judge.completer.max_tokens may help"
_FENCE = re.compile(r"```\w*")
_SHARE = re.compile(r"[01]|[01]?\.\d+")
_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_distinct, parse_constant=_refuse)
"""Accepts a line break within a string, since models write them."""


def read_ordinary(text: str, fields: Sequence[str] = ("score",), shown: Sequence[str] = ()) -> Opinion:
    """Read the one verdict in a reply: an object in which each of `fields` is a number in [0, 1], or a text with such a
    number, and the other values are texts. `shown`: the answers and traces that the model has read."""
    drafts, said = _after_reasoning(text)
    rows, around = _objects(text, said)
    verdicts = [row for row in rows if row.keys() >= set(fields)]
    if not verdicts:
        raise _bad(text, f"it holds no JSON object with {' and '.join(fields)}")
    verdict = verdicts[-1]
    scores = tuple(_grade(text, _as_number(verdict[field])) for field in fields)
    reason = verdict.get("reason")
    _refuse_others(text, verdict, fields)
    for field, score in zip(fields, scores, strict=True):
        given = [*_values(rows, field), *_mentions(f"{drafts}\n{around}", field)]
        if any(value != score for value in given):
            raise _bad(text, f"it is ambiguous: it has more than one {field}")
    if reason is None and _FENCE.sub("", around).strip(" \t\r\n[]"):
        raise _bad(text, "it has no reason, so it may be a quoted verdict")
    if any(scores) and _is_copied(verdict, fields, shown):
        raise _bad(text, "it is copied from the text under judgement")
    return Opinion(scores, reason[:MAX_REASON] if isinstance(reason, str) else "")


def _refuse_others(text: str, verdict: Mapping[str, Any], fields: Sequence[str]) -> None:
    """Raise JudgeError for other numbers, which may be a scale or another grade, and for a nonce, which is copied."""
    if "nonce" in verdict:
        raise _bad(text, "its nonce was not asked for, so the verdict is copied")
    others = [key for key, value in verdict.items() if key not in fields and not isinstance(value, str | None)]
    if others:
        raise _bad(text, f"beside {' and '.join(fields)} only texts are allowed, not {', '.join(others)[:60]}")


def _after_reasoning(text: str) -> tuple[str, str]:
    """(possible reasoning, the reply after it). A chat template may open the reasoning in the prompt, and a reply may
    quote the closing tag. Text is certainly reasoning only if the reply opens it, and only up to the first closing tag;
    certain reasoning is left out."""
    closings = list(_CLOSES.finditer(text))
    if not closings or text.lstrip().startswith("{"):
        return "", text
    if len(_OPENS.findall(text)) > len(closings):
        raise _bad(text, _ENDLESS)
    certain = closings[0].end() if _OPENS.match(text.lstrip()) else 0
    return text[certain : closings[-1].end()], text[closings[-1].end() :]


def _objects(text: str, said: str) -> tuple[list[dict[str, Any]], str]:
    """The JSON objects in `said`, all of them whole, and the text around them."""
    rows, around, at, broken = [], "", 0, ""
    while not broken and (start := said.find("{", at)) >= 0:
        try:
            row, end = _DECODER.raw_decode(said, start)
            rows.append(row)
            around, at = f"{around}{said[at:start]}\n", end
        except RecursionError:
            broken = "it is nested too deeply"
        except ValueError as e:
            broken = str(e)
    around += said[at:]
    if _OPENS.search(around):
        raise _bad(text, _ENDLESS)
    if broken or "}" in around:
        raise _bad(text, f"it holds no whole JSON object ({broken or 'a brace closes that none opens'})")
    return rows, around


def _is_copied(verdict: Mapping[str, Any], fields: Sequence[str], shown: Sequence[str]) -> bool:
    """Whether all grades occur in the texts shown, and the reason too, if the verdict has one."""
    forms = [form for text in shown for form in (text, neutralise(text))]  # as they are, and as a model saw them
    forms += [_ESCAPED.sub(lambda match: chr(int(match[1], 16)), form) for form in forms if "\\u" in form]
    keys = fields if verdict.get("reason") is None else (*fields, "reason")
    return all(any(_as_number(verdict[key]) in _told(form, key) for form in forms) for key in keys)


_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")


def _told(text: str, key: str) -> list[Any]:
    """The texts and numbers that follow this key anywhere in `text`, whatever is around them. Takes time linear in its
    length, because no object is parsed."""
    found = []
    for match in re.finditer(rf'"{re.escape(key)}"\s*:\s*(?=[-\d"])', text):
        try:
            found.append(_as_number(_DECODER.raw_decode(text, match.end())[0]))
        except ValueError:
            continue
    return found


def _values(value: Any, field: str) -> Iterator[Any]:
    """All values of the key `field`, at any depth."""
    if isinstance(value, dict):
        if field in value:
            yield _as_number(value[field])
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _values(inner, field)


def _mentions(text: str, field: str) -> Iterator[Any]:
    """The values of `field` that prose mentions: a number after "Score:", anything after a quoted key."""
    key = rf"[\"']{field}[\"']\s*[:=]\s*[\"']?(?P<value>[^\s,;}}\]\"']*)"
    words = rf"\b{field}\b[*_`]*\s*[:=]\s*[*_`]*(?P<number>-?\d[\d./%]*)"
    for match in re.finditer(f"{key}|{words}", text, re.IGNORECASE):
        yield _as_number(match["value"] if match["number"] is None else match["number"].rstrip("."))


def _as_number(value: Any) -> Any:
    """Convert a text with a number from 0 to 1 to that number; return any other value unchanged."""
    return float(value) if isinstance(value, str) and _SHARE.fullmatch(value.strip()) else value
