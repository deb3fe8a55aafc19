"""Settings, versions and machines that differ, key by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgrpo.records.card import flatten
from agentgrpo.records.run_dir import RunDir

_OWN = ("run.dir",)
"""Keys that no two runs share."""


def settings(a: RunDir, b: RunDir) -> list[dict[str, Any]]:
    """{"key","a","b"} of every key of the configurations that differs, those of a group together."""
    return apart(a.config, b.config)


def apart(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of two nested mappings, by key; a row has no "a" where only `b` has the key."""
    before, now = flatten(a), flatten(b)
    rows = []
    for key in sorted(before.keys() | now.keys()):
        if key not in _OWN and (key in before, before.get(key)) != (key in now, now.get(key)):
            sides = {name: side[key] for name, side in (("a", before), ("b", now)) if key in side}
            rows.append({"key": key, **sides})
    return rows
