"""Answers that are numbers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction

from agentgrpo.errors import JudgeError
from agentgrpo.judges.base import Verdict
from agentgrpo.types import Task

_RESULT = "####"
"""What GSM8K's solutions put before their result."""
_THOUSANDS = ",\u00a0\u2009\u202f"
_CURRENCY = "$€£¥₹"
_OPERATORS = "√∛∜×÷·∙∗⋅±∓≠¬"
_REACH = 24
"""Characters on either side of a number that say whether it is one."""
_NUMBER = re.compile(
    r"(?<![\w.^])(?<!\d,)"
    rf"(?P<digits>(?:\d{{1,3}}(?:[{_THOUSANDS}]\d{{3}})+|\d+)(?:\.\d+)?|\.\d+)"
    r"(?P<power>e[-+]?\d{1,3})?(?:\s?/\s?(?P<under>\d+))?(?![.,]?\d)",
    re.IGNORECASE,
)
_BEFORE = re.compile(rf"(?P<sign>[-+]\s?)?(?P<currency>[{_CURRENCY}]\s?)?(?P<inner>[-+]\s?)?$")
_OPERATED = re.compile(r"(?:[-+*/^]\s?|[!{}_\\])$")
"""Before a number that is a part of something else."""
_STARTS = re.compile(r"(?:^\s?|\n|[=:(\[]\s?|[\"'“‘`>])$")
"""Before any sign."""
_SAYS = re.compile(r"(?:[^\W\d_]{2}|[.,;!?])\s$")
"""Before a sign that touches its number: "it is -5", but not "x - 5" or "x -5"."""
_NAME = re.compile(r"[^\W\d_]{2}$")
"""Before a hyphen: "covid-19" is no number."""
_AFTER = re.compile(
    r"\s?[*+^]|[!_{}\\]|[:']\d|\)?\([-\d]|\s?/(?!\s?[^\W\d_])|\s?-\s?(?:$|[\d(.$]|[^\W\d_]\b)|\s\d+\s?/\s?\d"
    r"|\s?(?:x|mod|times|plus|over|divided by)\s?[-(\d.$]",
    re.IGNORECASE,
)
"""What makes a number a part of something else."""
_WORDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r"\{-\}"), "-"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\[,;:!]"), ""),
    (re.compile(r"\\(?:boxed|text|mathrm|mathbf)\s?\{([^{}]{0,200})\}"), r"\1"),
    (re.compile(r"\\([$%])"), r"\1"),
    (re.compile(r"^\s?\*\s", re.MULTILINE), ""),
    (re.compile(r"(?<![\w*)}])(\*{1,3}|_{1,3})(?=[^\s*_])([^\n*_]{0,200})(?<!\s)\1(?![\w*_({])"), r"\2"),
    (re.compile(r"(?<=[^\W\d_])\^\{?-?\d*\}?"), ""),  # m^2
    (re.compile(rf"\b(?:minus|negative)\s(?=[{_CURRENCY}.\d])", re.IGNORECASE), "-"),
)
"""LaTeX, Markdown and words -> what they mean."""


class Numeric:
    """1 where the answer is the same number as a reference, exactly, else 0. Units, currencies and words around it do
    not count, nor how it is written: "1,200.0 apples", "$1200" and "1.2e3" are one number, as are "1/2" and "0.5".
    A percent sign is a unit too: "12%" is 12, and not 0.12. After "####" only what follows it counts. An answer with
    two different numbers is none, for one could list many, and so is one with a number that is a part of an expression
    which is not read: "10^3", "2½", "5!", "x - 5".

    Raises JudgeError where no reference is a number."""

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        wanted = {number for reference in task.references if (number := number_of(reference)) is not None}
        if not wanted:
            raise JudgeError(
                f"task {task.id}: references {list(task.references)} are no numbers; give at least one that is, or "
                "choose another judge for its data source: judge=route",
                kind="no_reference",
            )
        return [Verdict(score=float(number_of(answer) in wanted)) for answer in answers]


def number_of(text: str) -> Fraction | None:
    """The one number in a text, or None where it holds none, one that cannot be read, or several that differ. A comma,
    or a space that does not break, stands before three digits; the decimal sign is a point. "-" is a sign at the start,
    after "=", ":", "(" or a currency, and where it touches its number after a word; "minus" and "negative" are too."""
    plain = "".join(map(_plain, text.rpartition(_RESULT)[2]))
    for pattern, meaning in _WORDS:
        plain = pattern.sub(meaning, plain)
    plain = plain.strip()
    found = [_value(match) for match in _NUMBER.finditer(plain) if not _is_name(match)]
    return found[0] if found and all(number == found[0] for number in found) else None


def _is_name(match: re.Match[str]) -> bool:
    before = match.string[max(match.start() - _REACH, 0) : match.start()]
    return before.endswith("-") and bool(_NAME.search(before[:-1]))


def _value(match: re.Match[str]) -> Fraction | None:
    if (sign := _sign(match)) is None or _AFTER.match(match.string[match.end() : match.end() + _REACH]):
        return None
    digits = match["digits"].translate(dict.fromkeys(map(ord, _THOUSANDS)))
    try:
        return sign * Fraction(digits + (match["power"] or "")) / int(match["under"] or 1)
    except (ValueError, ZeroDivisionError):  # more digits than Python reads, or a denominator of 0
        return None


def _sign(match: re.Match[str]) -> int | None:
    """1 or -1; None where what stands before the number makes it a part of something else."""
    start = max(match.start() - _REACH, 0)
    before = match.string[start : match.start()]
    found = _BEFORE.search(before)
    assert found is not None  # it may be empty
    head, sign, inner = before[: found.start()], found["sign"] or "", found["inner"] or ""
    if _OPERATED.search(head) or (sign and inner):
        return None
    touches = not sign.endswith((" ", "\n"))
    if sign and not (_STARTS.search(head) or (touches and _SAYS.search(head))):
        return None
    return -1 if "-" in sign + inner else 1


def _plain(character: str) -> str:
    """Digits, signs and full-width forms as ASCII has them; "*" for operators, and "^" for digits that are raised,
    circled, Roman or fractions."""
    if character < "\x80":
        return character
    if "\uff01" <= character <= "\uff5e":
        return chr(ord(character) - 0xFEE0)
    if character in "⁄∕":
        return "/"
    kind = unicodedata.category(character)
    if kind == "Pd" or character == "−":
        return "-"
    if kind in ("No", "Nl"):
        return "^"
    return "*" if character in _OPERATORS else str(unicodedata.decimal(character, character))
