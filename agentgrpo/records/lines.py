"""Lines of text for people: what each says, how it looks on a terminal, and how texts of a model get into one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple


class TextLine(NamedTuple):
    text: str
    """With line breaks where it is a block: every one of its lines is indented."""
    style: str = ""
    """Of rich; seen on terminals only."""
    indent: int = 0


HEADING, ADDED, CHANGED, REMOVED, FAILED, QUIET = "bold", "green", "yellow", "red", "bold red", "dim"


def one_line(text: str) -> str:
    """`text` so that it stays on its line: a sampled text must not look like lines of ours."""
    return "\\n".join(text.splitlines())


def called(name: str, arguments: Mapping[str, Any]) -> str:
    return one_line(f"{name} {json.dumps(arguments, ensure_ascii=False)}")


def counted(number: float, what: str, several: str = "") -> str:
    """ "1 token", "2 tokens", "2 entries"."""
    return f"{number:g} {what if number == 1 else several or f'{what}s'}"


def signed(value: float | None) -> str:
    return "none" if value is None else f"{value:+.3f}"
