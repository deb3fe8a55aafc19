"""A suite: several environments in one run. Each member has the keys of a separate run.

    suite:
      facts: {weight: 2, task: {...}, environment: {...}, reward: {...}}
      sums:  {task: {...}, environment: {...}, tools: {...}, judge: {...}}

A group that a member leaves out is that of the run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from agentgrpo.config.registry import NESTED, UNSUITED
from agentgrpo.core.errors import ConfigError

_NAME = re.compile(r"[A-Za-z_][\w-]*")


def members_of(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return name -> the member's configuration as a separate run, with its share of a step's tasks; empty without a
    suite. Raises ConfigError for contradictory settings."""
    suite = config.get("suite") or {}
    if config["task"].get("name") == UNSUITED and not suite:
        raise ConfigError(
            "task=suite has the tasks of a suite's members, and suite is empty; give it some: suite.NAME.task=..., or "
            "choose another task"
        )
    if suite and config["run"].get("eval", {}).get("prices"):
        raise ConfigError("run.eval.prices with a suite; give each member its own: suite.NAME.prices.CALL=PRICE")
    whole = sum(node.get("weight", 1.0) for node in suite.values())
    if suite and not whole:
        raise ConfigError("suite: no member has a weight above 0; raise one weight")
    return {name: _alone(config, name, node, node.get("weight", 1.0) / whole) for name, node in suite.items()}


def _alone(config: Mapping[str, Any], name: str, node: Mapping[str, Any], share: float) -> dict[str, Any]:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"suite.{name}: a name is letters, digits, _ and -; it begins the ids of the member's tasks")
    own = {group: node[group] for group in NESTED["member"] if group in node}
    rollout = dict(config["rollout"])
    rollout["tasks_per_step"] = max(1, math.ceil(share * rollout.get("tasks_per_step", 1)))
    if node.get("group_size") is not None:
        rollout["group_size"] = node["group_size"]
    alone = {**config, **own, "rollout": rollout, "suite": {}}
    if alone["task"].get("name") == UNSUITED:
        raise ConfigError(f"suite.{name} has no task; give it one: suite.{name}.task.name=..., or the run: task=...")
    scale = node.get("reward_scale", 1.0)
    if scale != 1.0:
        alone["reward"] = {**alone["reward"], "reward_scale": scale * alone["reward"].get("reward_scale", 1.0)}
    if "prices" in node:
        run = config["run"]
        alone["run"] = {**run, "eval": {**run.get("eval", {}), "prices": node["prices"]}}
    return alone
