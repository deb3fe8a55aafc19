"""Columns that no format reads: they are handed on as metadata of the task, or reported as unused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

from agentgrpo.tasks.records import Node, written

INERT: Mapping[str, str] = {
    **dict.fromkeys(("image", "images", "video", "videos", "audio", "audios"), "a policy reads text"),
    "tools": "tools=[...] offers tools",
    "chat_template_kwargs": "the renderer decides how messages are written",
    **dict.fromkeys(("env_class", "agent_name"), "environment= chooses the environment"),
}
"""Columns that other trainers use -> why they have no effect here."""


class Columns:
    """The columns of one file that its format does not read."""

    def __init__(self, unread: Collection[str], first: Mapping[str, Any]) -> None:
        """unread: large columns published with the format. They are not read if they hold lists or objects, so that a
        file may be larger than memory. "a.b" is the field b of the column a. first: the first row of the file."""
        self._large = frozenset(unread)
        self._handed_on: dict[str, None] = {}
        self._unused: dict[str, str] = {}
        self._heard: dict[str, None] = {}
        self.unread = tuple(name for name in unread if _is_large(name, first))
        for name in self.unread:
            self._unused[name] = ""

    def hear(self, note: str) -> None:
        """Record a row's note; equal notes are kept once."""
        if note:
            self._heard[note] = None

    def handed_on(self, row: Node, read: Collection[str]) -> dict[str, Any]:
        """Return the metadata of a row. read: the columns that its format has read."""
        found: dict[str, Any] = {}
        for name, value in row.object().items():
            if name in read:
                continue
            if name in self._large and isinstance(value, list | dict):
                self._unused[name] = ""
                continue
            try:
                found[name] = self._without_large(name, _plain(value) if row.of_table else value)
            except TypeError as e:
                self._unused[name] = str(e)
        self._handed_on |= dict.fromkeys(found)
        return found

    def notes(self) -> Iterable[str]:
        """Yield parts of a sentence: the columns handed on, and those not used."""
        yield from self._heard
        if handed_on := [name for name in self._handed_on if name != "split"]:
            yield f"metadata of its tasks: {', '.join(handed_on)}"
        inert = {name: INERT[name] for name in handed_on if name in INERT}
        for what, names in (("without effect", inert), ("not read", self._unused)):
            if names:
                yield f"{what}: " + ", ".join(f"{name} ({why})" if why else name for name, why in names.items())

    def _without_large(self, name: str, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        parts = {key: f"{name}.{key}" for key in value}
        self._unused |= {path: "" for path in parts.values() if path in self._large}
        return {key: part for key, part in value.items() if parts[key] not in self._large}


def _is_large(name: str, row: Mapping[str, Any]) -> bool:
    column, _, part = name.partition(".")
    value = row.get(column)
    if part:
        return isinstance(value, dict) and part in value
    return isinstance(value, list | dict)


def _plain(value: Any) -> Any:
    """Convert a table's cell to JSON values. Raises TypeError if JSON has no such type."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return written(value) if isinstance(value, Decimal) else str(value)
    raise TypeError(f"holds {type(value).__name__}, which is neither text nor number")
