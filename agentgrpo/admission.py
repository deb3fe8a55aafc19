"""What a configuration may not do by itself: it may come from anybody, as a run directory does."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentgrpo.errors import ConfigError
from agentgrpo.registry import PROGRAMS

_RESOLVER = re.compile(r"\$\{\s*([^\s${}:]+)\s*:")


def refuse_resolvers(tree: Any) -> None:
    """Raise ConfigError for an interpolation that computes anything but an environment variable's value."""
    for path, value in _walk(tree):
        for name in _RESOLVER.findall(value) if isinstance(value, str) else ():
            if name != "oc.env":
                raise ConfigError(f"{path}={value}: resolver '{name}'; allowed is oc.env. Write the value itself")


def refuse_targets(tree: Any, file: Path) -> None:
    """Raise ConfigError for a key that a library would act on (`_target_`)."""
    for path, _ in _walk(tree):
        if re.fullmatch(r"_\w+_", path.rpartition(".")[2]):
            raise ConfigError(f"{file}: {path} would name code to call; remove it")


def refuse_programs(config: Mapping[str, Any], named: Collection[str]) -> None:
    """Raise ConfigError for a tool of the resolved `config` that would start a program, or run the policy's without a
    sandbox, where none of `named`, the keys on the command line, says so."""
    tools = config.get("tools")
    for key, node in tools.items() if isinstance(tools, Mapping) else ():
        for setting, harmless in PROGRAMS.items():
            path, value = f"tools.{key}.{setting}", node.get(setting) if isinstance(node, Mapping) else None
            if value is not None and value not in harmless and not {path, f"tools.{key}"} & {*named}:
                raise ConfigError(
                    f"{path}={value} lets a run directory start programs; to allow it, say so on this command line"
                )


def _walk(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, list) else ():
        key_path = f"{path}.{key}" if path else str(key)
        yield key_path, value
        yield from _walk(value, key_path)
