"""What a memory held while it was being written, told by its changes."""

from __future__ import annotations

from collections.abc import Iterable

from agentgrpo.memory.base import Change, Entry
from agentgrpo.memory.schema import key_of


class Stored:
    """The entries after the changes that `follow` was given so far."""

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        self.entries: list[Entry] = []
        for change in changes:
            self.follow(change)

    def follow(self, change: Change) -> None:
        if change.before in self.entries:
            self.entries.remove(change.before)
        if change.after is not None:
            self.entries.append(change.after)

    def holds(self, key: str) -> bool:
        return any(key_of(entry.text) == key for entry in self.entries)
