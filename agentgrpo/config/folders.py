"""The package's preset files: their location, and their settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import agentgrpo

MOST_HINTS = 3


def configs_dir() -> Path:
    """Return the folder of presets: inside an installed package, beside the package in a checkout."""
    package = Path(agentgrpo.__file__).parent
    inside = package / "_configs"
    return inside if inside.is_dir() else package.parent / "configs"


def settings_called(key: str) -> str:
    """Return " Did you mean run.keep_last?" for a setting's last word without its group, in upper or lower case; "" if
    no preset has the word, or too many have it."""
    found = _settings().get(key.lower(), ())
    return f" Did you mean {' or '.join(found)}?" if 0 < len(found) <= MOST_HINTS else ""


@cache
def _settings() -> Mapping[str, tuple[str, ...]]:
    """Return the last word of a setting -> the settings with this word."""
    settings: dict[str, dict[str, None]] = {}
    for file in sorted(configs_dir().rglob("*.yaml")):
        group = file.parent.relative_to(configs_dir()).parts
        if group and group[0] not in ("experiment", "suite"):
            for path in _paths(yaml.safe_load(file.read_text("utf-8")), group):
                settings.setdefault(path[-1].lower(), {})[".".join(path)] = None
    return {word: tuple(found) for word, found in settings.items()}


def _paths(tree: Any, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if key != "defaults" and not str(key).startswith("override "):
            yield (*above, str(key))
            yield from _paths(value, (*above, str(key)))
