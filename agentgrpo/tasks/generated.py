"""What the embedded worlds have in common: habits of their demonstrators by name, and a hash of what makes them up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, TypeVar

from agentgrpo.errors import ConfigError, did_you_mean

H = TypeVar("H")


def habits_of(kind: type[H], given: Mapping[str, float]) -> H:
    """The dataclass `kind` from the settings that were given. Raises ConfigError for one that it does not have."""
    allowed: Mapping[str, Any] = kind.__dataclass_fields__  # type: ignore[attr-defined]
    for name in given:
        if name not in allowed:
            raise ConfigError(f"habits.{name}; {', '.join(allowed)} are allowed.{did_you_mean(name, allowed)}")
    return kind(**given)


def hash_of(*parts: object) -> str:
    """Of JSON values, in order."""
    return blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
