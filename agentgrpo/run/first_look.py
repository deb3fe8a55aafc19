"""Whether a step may take hours on this CPU, and the settings that bring it down to minutes for a first look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SLOW = 1e13
"""Limit for weights x sampled tokens of a step: about an hour on two cores, which compute about 2e10 products a second,
with update and prompts included."""
SHORTER = {
    "rollout.tasks_per_step": 4,
    "rollout.max_tokens": 64,
    "environment.max_turns": 3,
    "run.eval.tasks": 16,
    "run.max_steps": 20,
}


def too_long(tree: Mapping[str, Any], weights: int) -> str | None:
    """Warn of a step that may take hours, with the settings for a first look. Return None for a shorter step, or if the
    policy is not sampled on this machine's CPU."""
    rollout, environment = tree["rollout"], tree["environment"]
    if tree["hardware"]["device"] != "cpu" or tree["engine"]["name"] != "hf":
        return None
    turns = environment.get("max_turns") or 1
    episodes = rollout["tasks_per_step"] * rollout["group_size"]
    tokens = episodes * turns * rollout["max_tokens"]
    if weights * tokens <= SLOW:
        return None
    groups = {**tree, "run.eval": tree["run"]["eval"]}
    shorter = [f"{k}={v}" for k, v in SHORTER.items() if _value(groups, k) > v]
    each = f"{turns} turn{'s' if turns > 1 else ''} x {rollout['max_tokens']}"
    return (
        f"a step samples {tokens:,} tokens at most ({episodes} episodes x {each}) from {weights:,} weights, which takes"
        f" hours on a CPU; agentgrpo plan estimates how many. For a first look add {' '.join(shorter)}"
    )


def _value(groups: Mapping[str, Any], key: str) -> float:
    """Return the setting's value, or 0 if the group lacks it or leaves it open."""
    group, _, field = key.rpartition(".")
    return float(groups[group].get(field) or 0)
