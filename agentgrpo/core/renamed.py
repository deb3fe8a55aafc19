"""Names that older versions used, so that their run directories and command lines can still be read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_ENVIRONMENTS = {"tool": "tools"}
"""Values of the old group `agent` -> values of `environment`."""
_AGENT = re.compile(r"(?P<sign>\+{0,2}|~)agent(?P<rest>[=.@/].*|$)", re.DOTALL)


def config_of_today(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's configuration with the current names."""
    if "agent" not in config or "environment" in config:
        return dict(config)
    renamed = {"environment" if group == "agent" else group: node for group, node in config.items()}
    node = renamed["environment"]
    if isinstance(node, Mapping):
        renamed["environment"] = {**node, "name": _ENVIRONMENTS.get(str(node.get("name")), node.get("name"))}
    return renamed


def overrides_of_today(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides of a command line with the current names, and a note for each renamed override."""
    found, notes = [], []
    for text in overrides:
        match = _AGENT.fullmatch(text)
        if match is None:
            found.append(text)
            continue
        rest = match["rest"]
        if rest.startswith("="):
            rest = "=" + _ENVIRONMENTS.get(rest[1:], rest[1:])
        found.append(f"{match['sign']}environment{rest}")
        notes.append(f"{text} is written {found[-1]} now")
    return found, notes
