"""Untrusted input: make text (a program's output, a page, a passage) safe for a policy to read and for people to print,
and refuse folders and trees that would never end."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

from agentgrpo.core.errors import AgentGrpoError, DataError, line_of
from agentgrpo.core.secrets import discreet

_ESCAPES = re.compile(
    "\x1b\\[[0-?]*+[ -/]*+[@-~]?"  # CSI: colours, cursor
    "|\x1b[\\]PX^_][^\x07\x1b]*+(?:\x07|\x1b\\\\)?"  # OSC and other strings: titles, links, the clipboard
    "|\x1b[ -/]*+[0-~]?"
)
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
"""Control characters but tab and line feed, bidirectional controls, separators, and characters without width. The two
joiners (U+200C, U+200D) are kept: without them Persian, Hindi and emoji would change."""
_PART = 2**20
"""Characters that `visible` handles at once. An escape sequence across two parts leaves its letters."""


def visible(text: str) -> str:
    """Return `text` without escape sequences, control characters and invisible characters. The time is proportional to
    the length for any content; in a thread, it does not hold up other threads for long."""
    if text.isascii() and text.isprintable():
        return text
    parts = (text[i : i + _PART] for i in range(0, len(text), _PART))
    return "".join(_INVISIBLE.sub("", _ESCAPES.sub("", part)) for part in parts)


def printable(text: str) -> str:
    """Return `text`, which may quote others (an error, a file's name), in a form that is safe for a terminal and a log:
    visible, and without secrets."""
    return visible(discreet(text))


_FILLERS = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and signs that show nothing: fillers of Hangul, the blank of Braille."""


def is_blank(text: str) -> bool:
    """Whether `text` has nothing visible: no letter, number, punctuation or sign."""
    return not any(c not in _FILLERS and unicodedata.category(c)[0] in "LNPS" for c in text)


def unframed(text: str, tags: Iterable[str]) -> str:
    """Escape the opening and closing `tags` in `text`: `</information>` becomes `&lt;/information>`."""
    return _tags(tuple(tags)).sub("&lt;", text) if "<" in text else text


@cache
def _tags(names: tuple[str, ...]) -> re.Pattern[str]:
    one_of = "|".join(map(re.escape, names))
    return re.compile(rf"<(?=\s*/?\s*(?:{one_of})(?![\w-]))", re.IGNORECASE)


# --- Untrusted folders and trees: a run's directory, a checkpoint, a configuration.

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_FILES = (".json", ".jsonl", ".safetensors", ".yaml")
_MOST_NODES = 100_000
_MOST_VALUES = 2**20
_DIGITS = 300


@contextmanager
def damaged(where: object, kind: type[AgentGrpoError] = DataError) -> Iterator[None]:
    """Turn any error of the block, which damaged data can raise, into an error of type `kind` about `where`."""
    try:
        yield
    except AgentGrpoError:
        raise
    except Exception as e:  # errors of libraries too
        raise kind(f"{where} is damaged: {line_of(e)}") from e


def read_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError for invalid JSON and for an integer of over 300 digits; RecursionError."""
    return json.loads(text, parse_int=_int)


def read_body(body: bytes) -> Any:
    """Parse the JSON body of a client's request. It may be large: in a thread, parsing does not hold up other threads.
    Raises ValueError for invalid JSON, and for more values than any request has; RecursionError."""
    if sum(map(body.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise ValueError(f"more than {_MOST_VALUES} values")
    return json.loads(body, cls=_InPython)


class _InPython(json.JSONDecoder):
    """A decoder in Python: json's default scanner in C lets no other thread run until it has read everything."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.scan_once = py_make_scanner(self)


def _int(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def refuse_special_files(folder: Path) -> None:
    """Raise DataError for the first entry below `folder`, links followed, that is neither a file nor a folder: reading
    it might never end. Also refuse a folder with the name of a file."""
    for path in (folder, *sorted(folder.rglob("*"))):
        try:
            mode = path.stat().st_mode
        except OSError:  # a link that leads nowhere, or in a circle
            continue
        if (kind := _KINDS.get(stat.S_IFMT(mode))) is not None:
            raise DataError(f"{path} is {kind}; allowed are files and folders: remove it")
        if stat.S_ISDIR(mode) and path != folder and path.suffix in _FILES:
            raise DataError(f"{path} is a folder, and a file is needed there: remove it")


def refuse_links_out(folder: Path) -> None:
    """Raise DataError for the first link below `folder` that leads out of it: a write there would go elsewhere."""
    home = os.path.realpath(folder)
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(home):
            raise DataError(
                f"{path} leads out of {folder}, and a resumed run writes there; replace the link by its target"
            )


def refuse_endless(tree: object, where: object) -> None:
    """Raise DataError for a tree with more values than any configuration has. YAML's aliases can make such a tree: each
    of ten lines repeats the line before it ten times. Also refuse an integer that no float holds."""
    left, waiting = _MOST_NODES, [tree]
    while waiting:
        node = waiting.pop()
        left -= 1
        if left < 0:
            raise DataError(f"{where} has more than {_MOST_NODES} values, aliases written out; that is too large")
        if isinstance(node, int) and abs(node) > sys.float_info.max:
            raise DataError(f"{where} has a number beyond {sys.float_info.max:.0e}; no setting is so large")
        if isinstance(node, Mapping):
            waiting += node.values()
        elif isinstance(node, Sequence) and not isinstance(node, str | bytes):
            waiting += node
