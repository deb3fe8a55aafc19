"""What generated task sets have in common: habits of their demonstrators and kinds of tasks by name, what a task was
made from, and a hash of what makes them up."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

from agentgrpo.core.errors import ConfigError, DataError, did_you_mean
from agentgrpo.core.types import Task

H = TypeVar("H")


def habits_of(kind: type[H], given: Mapping[str, float]) -> H:
    """The dataclass `kind` from the settings that were given. Raises ConfigError for one that it does not have."""
    allowed: Mapping[str, Any] = kind.__dataclass_fields__  # type: ignore[attr-defined]
    for name in given:
        if name not in allowed:
            raise ConfigError(f"habits.{name}; {', '.join(allowed)} are allowed.{did_you_mean(name, allowed)}")
    return kind(**given)


def refuse_other_kinds(names: Sequence[str], allowed: Collection[str], setting: str) -> None:
    """Raise ConfigError, which names `setting`, where `names` has none, or one that is not allowed."""
    for name in names:
        if name not in allowed:
            raise ConfigError(f"{setting} has {name!r}; {', '.join(allowed)} are allowed.{did_you_mean(name, allowed)}")
    if not names:
        raise ConfigError(f"{setting}=[]; name at least one of {', '.join(allowed)}")


def hash_of(*parts: object) -> str:
    """Of JSON values, in order."""
    return blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def drawn(worlds: Mapping[str, H], task: Task) -> H:
    """What the task was made from, by its id. Raises DataError for a task of another world."""
    if task.id not in worlds:
        raise DataError(f"task '{task.id}' is not of this world; the oracle knows only the tasks of its own splits")
    return worlds[task.id]
