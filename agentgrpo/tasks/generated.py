"""Helpers shared by generated task sets: habits of demonstrators, kinds of tasks, the world behind a task, and
fingerprints."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

from agentgrpo.core.errors import ConfigError, DataError, did_you_mean
from agentgrpo.core.types import Task

H = TypeVar("H")


def habits_of(kind: type[H], given: Mapping[str, float]) -> H:
    """Build the dataclass `kind` from the given settings. Raises ConfigError for a setting that it does not have."""
    allowed: Mapping[str, Any] = kind.__dataclass_fields__  # type: ignore[attr-defined]
    for name in given:
        if name not in allowed:
            raise ConfigError(f"habits.{name}; {', '.join(allowed)} are allowed.{did_you_mean(name, allowed)}")
    return kind(**given)


def refuse_other_kinds(names: Sequence[str], allowed: Collection[str], setting: str) -> None:
    """Raise ConfigError, naming `setting`, if `names` is empty or has a name that is not allowed."""
    for name in names:
        if name not in allowed:
            raise ConfigError(f"{setting} has {name!r}; {', '.join(allowed)} are allowed.{did_you_mean(name, allowed)}")
    if not names:
        raise ConfigError(f"{setting}=[]; name at least one of {', '.join(allowed)}")


def hash_of(*parts: object) -> str:
    """Hash JSON values, in order."""
    return blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def drawn(worlds: Mapping[str, H], task: Task) -> H:
    """Return the world from which the task was made, by its id. Raises DataError for a task of another world."""
    if task.id not in worlds:
        raise DataError(f"task '{task.id}' is not of this world; the oracle knows only the tasks of its own splits")
    return worlds[task.id]
