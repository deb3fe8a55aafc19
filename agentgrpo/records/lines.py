"""Lines of text for people: their text, their style on a terminal, and how to put a model's text into a line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple


class TextLine(NamedTuple):
    text: str
    """May have line breaks; then every line is indented."""
    style: str = ""
    """A style of rich; only terminals show it."""
    indent: int = 0


HEADING, ADDED, CHANGED, REMOVED, FAILED, QUIET = "bold", "green", "yellow", "red", "bold red", "dim"


def one_line(text: str) -> str:
    """`text` with its line breaks escaped: a sampled text must not look like lines of ours."""
    return "\\n".join(text.splitlines())


def called(name: str, arguments: Mapping[str, Any]) -> str:
    return one_line(f"{name} {json.dumps(arguments, ensure_ascii=False)}")


def counted(number: float, what: str, several: str = "") -> str:
    """ "1 token", "2 tokens", "2 entries"."""
    return f"{number:g} {what if number == 1 else several or f'{what}s'}"


def signed(value: float | None) -> str:
    return "none" if value is None else f"{value:+.3f}"
