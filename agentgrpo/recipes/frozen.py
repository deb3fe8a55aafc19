"""The policy must not be its own reader: what reads and judges a memory stays as it is while the policy learns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentgrpo.errors import ConfigError
from agentgrpo.recipes.loading import local_folder
from agentgrpo.registry import FROZEN


def refuse_own_reader(agent: Mapping[str, Any], *, run_dir: Path, policies: Iterable[Path]) -> None:
    """Raise ConfigError where a frozen part of the node `agent`, or a part in it, names the folder of the policy, or
    one in the run's own directory, where checkpoints appear. policies: folders that the policy is loaded from."""
    trained, inside = [policy.resolve() for policy in policies], run_dir.expanduser().resolve()
    for key in sorted(FROZEN & agent.keys()):
        for where, folder in _folders(agent[key], f"agent.{key}"):
            found = folder.resolve()
            if found in trained or inside in (found, *found.parents):
                whose = "the policy's own" if found in trained else f"in the directory of this run, {run_dir}"
                raise ConfigError(
                    f"{where}={folder}: this folder is {whose}, and a {key} must be a model that is not trained here; "
                    "give another one, be it a copy elsewhere"
                )


def _folders(node: Any, where: str) -> Iterator[tuple[str, Path]]:
    """Every folder that a text in the node names; `path` may also be a name in the cache of models."""
    for key, value in node.items() if isinstance(node, Mapping) else ():
        if isinstance(value, str):
            folder = local_folder(value) if key == "path" else Path(value).expanduser()
            if folder.is_dir():
                yield f"{where}.{key}", folder
        else:
            yield from _folders(value, f"{where}.{key}")
