"""What programs print, as text that is safe to read: nothing in it acts on a terminal or turns the reader's eye."""

from __future__ import annotations

import re

_ESCAPES = re.compile(
    "\x1b\\[[0-?]*+[ -/]*+[@-~]?"  # CSI: colours, cursor
    "|\x1b[\\]PX^_][^\x07\x1b]*+(?:\x07|\x1b\\\\)?"  # OSC and other strings: titles, links, the clipboard
    "|\x1b[ -/]*+[0-~]?"
)
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
"""Control characters but tab and line feed, bidirectional controls, separators, and what has no width."""


def plain_text(printed: bytes) -> str:
    """`printed` without escape sequences, control characters and invisible ones; what is not UTF-8 becomes U+FFFD."""
    text = printed.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return _INVISIBLE.sub("", _ESCAPES.sub("", text))
