"""A question of a file, before it becomes a task, and what makes two of them the same."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentgrpo.tasks.files import FILES

_ARTICLES = frozenset({"a", "an", "the"})
_ALIKE = str.maketrans(dict.fromkeys("‐‒–—―−", "-") | dict.fromkeys("⁄∕÷", "/") | dict.fromkeys("×∗⋅", "*"))
"""Signs that are written in several ways."""
_INITIALS = re.compile(r"(?<!\w)[^\W\d_](?:\. ?[^\W\d_])+(?!\w)")
_SIGN = re.compile(r"[^\w\s]|_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    where: str
    """File and place in it, for messages."""
    question: str
    answers: tuple[str, ...]
    """Acceptable ones; none where the file has none, as published test sets."""
    id: str = ""
    """The file's own; "" = it has none."""
    data_source: str = ""
    """Where the file says that the question is from."""
    split: str | None = None
    """Where the file says that it belongs."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


def words_of(text: str) -> list[str]:
    """In lower case and without punctuation, in any script; compatibility forms count as the plain ones.

    Signs that tell two questions apart are words of their own: all symbols ("C++", "3 < 4"), "#", "%" and "*" beside a
    word, "/" beside a number and "-" before one. "well-known" is two words, "U.S." and "J. K." are one."""
    plain = " ".join(unicodedata.normalize("NFKC", text).lower().translate(_ALIKE).split())
    return _SIGN.sub(_sign, _INITIALS.sub(_joined, plain)).split()


def _joined(initials: re.Match[str]) -> str:
    return initials[0].replace(".", "").replace(" ", "")


def _sign(match: re.Match[str]) -> str:
    sign, text, at = match[0], match.string, match.start()
    kind = unicodedata.category(sign)
    if kind[0] == "M":  # a vowel sign, or an accent: part of its letter
        return sign
    close, after = text[at - 1 : at], text[at + 1 : at + 3].lstrip()[:1]
    before = text[max(at - 2, 0) : at].rstrip()[-1:]
    if sign in "#%*":
        is_kept = before.isalnum() or after.isalnum() or sign in (before, after)
    elif sign == "/":
        is_kept = before.isdecimal() or after.isdecimal()
    elif sign == "-":
        is_kept = after.isdecimal() and not close.isalpha()  # "covid-19" is also written "covid 19"
    else:
        is_kept = kind in ("Sm", "Sc", "So") or sign == "^"  # of Sk the others are accents, which serve as quotes
    return f" {sign} " if is_kept else " "


def same_question(entry: Entry) -> str:
    """Equal for two entries that ask the same: the words of the question, and the files that come with it."""
    words = " ".join(words_of(entry.question)) or entry.question
    files = entry.metadata.get(FILES)
    return f"{words}\n{json.dumps(files, sort_keys=True)}" if files else words


def nearly_same(same: str) -> str:
    """Of same_question: equal where no word but an article is in one of them alone, whatever the order."""
    return " ".join(sorted({*same.split()} - _ARTICLES)) or same


def same_answers(answers: tuple[str, ...]) -> frozenset[str]:
    """To be compared with those of another."""
    return frozenset(" ".join(w for w in words_of(a) if w not in _ARTICLES) or a for a in answers)
