"""Text of others (a program's output, a page, a passage), made safe for a policy to read and for people to print."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

_ESCAPES = re.compile(
    "\x1b\\[[0-?]*+[ -/]*+[@-~]?"  # CSI: colours, cursor
    "|\x1b[\\]PX^_][^\x07\x1b]*+(?:\x07|\x1b\\\\)?"  # OSC and other strings: titles, links, the clipboard
    "|\x1b[ -/]*+[0-~]?"
)
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
"""Control characters but tab and line feed, bidirectional controls, separators, and what has no width. Not the two
joiners (U+200C, U+200D), without which Persian, Hindi and emoji are other words."""


def visible(text: str) -> str:
    """`text` without escape sequences, control characters and invisible ones. It takes time in proportion to its
    length, whatever is in it."""
    return text if text.isascii() and text.isprintable() else _INVISIBLE.sub("", _ESCAPES.sub("", text))


def unframed(text: str, tags: Iterable[str]) -> str:
    """`text` in which none of `tags` is a tag, opening or closing: `</information>` becomes `&lt;/information>`."""
    return _tags(tuple(tags)).sub("&lt;", text) if "<" in text else text


@cache
def _tags(names: tuple[str, ...]) -> re.Pattern[str]:
    one_of = "|".join(map(re.escape, names))
    return re.compile(rf"<(?=\s*/?\s*(?:{one_of})(?![\w-]))", re.IGNORECASE)
