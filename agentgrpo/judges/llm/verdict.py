"""A judge model's verdict: one JSON object that says what was asked for, or a JudgeError with what is wrong with it.

    read_verdict    strict: the object and nothing else, with the nonce
    read_ordinary   as servers reply: reasoning, a code fence and sentences around the object

Both would rather give no grade than a wrong one. An ordinary reply may quote what it judges, so that a verdict in it
can be the answer's own. Three rules tell them apart: all grades in the reply are the same, no brace is left over (it
could be of a broken object around a quoted one), and a grade above 0 does not stand in what was shown.
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
"""JudgeError.kind of what is no verdict."""
MAX_REASON = 500
"""Characters of a reason that are kept."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a model says of an answer: grades in [0, 1], one for each answer it was shown."""

    scores: tuple[float, ...]
    reason: str


def _bad(text: str, problem: str) -> JudgeError:
    return JudgeError(f"the judge model gave no verdict: {problem}: {text[:120]!r}", kind=BAD_VERDICT)


# --- Strict: the object and nothing else.


def read_verdict(text: str, nonce: str, fields: Sequence[str] = ("score",)) -> Opinion:
    """`{"nonce": nonce, <each of fields>: number in [0, 1], "reason": text}` and nothing else: no other key, none
    twice, no word before or after. A wrong nonce is the mark of a verdict that was copied from somewhere."""
    row = _row(text, nonce, fields)
    return Opinion(tuple(_grade(text, row[field]) for field in fields), row["reason"][:MAX_REASON])


def read_choice(text: str, nonce: str, field: str, allowed: Sequence[str]) -> tuple[str, str]:
    """(the choice, the reason) of `{"nonce": nonce, field: one of allowed, "reason": text}`, as strict as
    `read_verdict`: a choice is one of `allowed` letter for letter, so "INVALID" is never taken for a "VALID"."""
    row = _row(text, nonce, (field,))
    if row[field] not in allowed:
        raise _bad(text, f"{field} must be {' or '.join(allowed)}")
    return row[field], row["reason"][:MAX_REASON]


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


def _grade(text: str, value: Any) -> float:
    if type(value) not in (int, float) or not (math.isfinite(value) and 0 <= value <= 1):
        raise _bad(text, f"a grade must be a number from 0 to 1, and is {str(value)[:40]!r}")
    return float(value)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ValueError("a key stands twice")
    return row


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")


# --- Ordinary: the object, whatever stands around it.

_OPENS = re.compile(r"<(?:think|thinking|thought|reasoning)>|\[THINK\]", re.IGNORECASE)
_CLOSES = re.compile(r"</(?:think|thinking|thought|reasoning)>|\[/THINK\]", re.IGNORECASE)
_ENDLESS = "its reasoning does not end; a larger judge.completer.max_tokens may help"
_FENCE = re.compile(r"```\w*")
_SHARE = re.compile(r"[01]|[01]?\.\d+")
_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_distinct, parse_constant=_refuse)
"""Takes a line break within a text, which models write."""


def read_ordinary(text: str, fields: Sequence[str] = ("score",), shown: Sequence[str] = ()) -> Opinion:
    """The one verdict in a reply: an object with each of `fields`, a number in [0, 1] or a text that is one. Its other
    values are texts. `shown`: texts of others that the model has read."""
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
            raise _bad(text, f"it is ambiguous, it gives more than one {field}")
    if reason is None and _FENCE.sub("", around).strip(" \t\r\n[]"):
        raise _bad(text, "it has no reason, so it may be one that is quoted")
    if any(scores) and _is_copied(verdict, fields, shown):
        raise _bad(text, "it is copied, it stands in what was to be judged")
    return Opinion(scores, reason[:MAX_REASON] if isinstance(reason, str) else "")


def _refuse_others(text: str, verdict: Mapping[str, Any], fields: Sequence[str]) -> None:
    """A number beside a grade may be its scale, or another grade; a nonce was not asked for."""
    if "nonce" in verdict:
        raise _bad(text, "it has a nonce, which was not asked for, so it is copied")
    others = [key for key, value in verdict.items() if key not in fields and not isinstance(value, str | None)]
    if others:
        raise _bad(text, f"beside {' and '.join(fields)} texts are allowed, and not {', '.join(others)[:60]}")


def _after_reasoning(text: str) -> tuple[str, str]:
    """(what may be reasoning, the reply after it). A chat template may open the reasoning in the prompt, and a reply
    may quote the tag that closes it. So it is certain only where the reply opens it, and up to the first such tag."""
    closings = list(_CLOSES.finditer(text))
    if not closings or text.lstrip().startswith("{"):
        return "", text
    if len(_OPENS.findall(text)) > len(closings):
        raise _bad(text, _ENDLESS)
    certain = closings[0].end() if _OPENS.match(text.lstrip()) else 0
    return text[certain : closings[-1].end()], text[closings[-1].end() :]


def _objects(text: str, said: str) -> tuple[list[dict[str, Any]], str]:
    """The JSON objects in `said`, all of them whole, and what stands around them."""
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
    """Whether all grades stand in texts of others, and the reason too, where the verdict has one."""
    forms = [form for text in shown for form in (text, neutralise(text))]  # as they are, and as a model saw them
    forms += [_ESCAPED.sub(lambda match: chr(int(match[1], 16)), form) for form in forms if "\\u" in form]
    keys = fields if verdict.get("reason") is None else (*fields, "reason")
    return all(any(_as_number(verdict[key]) in _told(form, key) for form in forms) for key in keys)


_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")


def _told(text: str, key: str) -> list[Any]:
    """The texts and numbers that stand behind this key anywhere in `text`, whatever is around them: in time
    proportional to its length, as no object is read."""
    found = []
    for match in re.finditer(rf'"{re.escape(key)}"\s*:\s*(?=[-\d"])', text):
        try:
            found.append(_as_number(_DECODER.raw_decode(text, match.end())[0]))
        except ValueError:
            continue
    return found


def _values(value: Any, field: str) -> Iterator[Any]:
    """Whatever stands under `field`, at any depth."""
    if isinstance(value, dict):
        if field in value:
            yield _as_number(value[field])
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _values(inner, field)


def _mentions(text: str, field: str) -> Iterator[Any]:
    """What words give as `field`: a number after "Score:", anything after a quoted key."""
    key = rf"[\"']{field}[\"']\s*[:=]\s*[\"']?(?P<value>[^\s,;}}\]\"']*)"
    words = rf"\b{field}\b[*_`]*\s*[:=]\s*[*_`]*(?P<number>-?\d[\d./%]*)"
    for match in re.finditer(f"{key}|{words}", text, re.IGNORECASE):
        yield _as_number(match["value"] if match["number"] is None else match["number"].rstrip("."))


def _as_number(value: Any) -> Any:
    """A text that is a number from 0 to 1 as that number, anything else as it is."""
    return float(value) if isinstance(value, str) and _SHARE.fullmatch(value.strip()) else value
