"""`agentgrpo diff RUN_A RUN_B`: what two runs have apart. It loads no model, and both may be under way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgrpo.commands import Command, Outcome
from agentgrpo.diffing.evaluations import evaluations
from agentgrpo.diffing.metrics import first_step_apart, rewards
from agentgrpo.diffing.origins import origins
from agentgrpo.diffing.settings import settings
from agentgrpo.diffing.text import show
from agentgrpo.errors import ConfigError
from agentgrpo.records.json_text import json_text
from agentgrpo.records.run_dir import RunDir
from agentgrpo.records.screen import Screen


def diff(config: Mapping[str, Any], command: Command) -> Outcome:
    """Exit code 0 whether or not they differ. Raises ConfigError where there is no run."""
    given = command.arguments
    if len(given["other"]) != 1:
        raise ConfigError(f"diff compares two runs, got {1 + len(given['other'])}: agentgrpo diff RUN_A RUN_B")
    found = difference(RunDir(Path(given["run_dir"])), RunDir(Path(given["other"][0])))
    if given["json"]:
        print(json_text(found, indent=2))
    else:
        show(Screen("quiet"), found)
    return Outcome()


def difference(a: RunDir, b: RunDir) -> dict[str, Any]:
    """What `--json` prints: "a" and "b" are the runs, and a key that only one of them has stands for that one alone;
    differences are those of b from a."""
    return {
        "runs": {"a": str(a.path), "b": str(b.path)},
        "settings": settings(a, b),
        **origins(a, b),
        "rewards": rewards(a, b),
        "first_difference": first_step_apart(a, b),
        "evaluations": evaluations(a, b),
    }
