"""A configuration, read: from here on nobody looks a key up in it.

config --settings_of--> settings, each of its own type, and the nodes of parts that need others to be built
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgrpo.config.build import ModelPath, PartNode, build_node
from agentgrpo.config.hardware import Hardware
from agentgrpo.config.settings import RolloutSettings, RunSettings
from agentgrpo.config.suite import members_of
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.run.guards import Guard
from agentgrpo.run.warm_start import WarmStart
from agentgrpo.services.budget import Budget
from agentgrpo.services.cassette import CassetteSettings


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Of one configuration, group by group."""

    tree: Mapping[str, Any]
    """As it was composed: for what is compared by it."""
    run: RunSettings
    rollout: RolloutSettings
    hardware: Hardware
    algorithm: Algorithm
    guards: Mapping[str, Guard]
    cassette: CassetteSettings
    budget: Budget
    model: WarmStart | ModelPath
    """Where the start weights come from."""
    task: PartNode
    demonstrations: PartNode
    judge: PartNode
    reward: PartNode
    counterfactual: PartNode
    engine: PartNode
    environment: PartNode
    optimizer: PartNode
    suite: Mapping[str, Member]

    @property
    def each(self) -> Sequence[Settings]:
        """Of all members, or of the one environment."""
        return [member.settings for member in self.suite.values()] or [self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Of a suite."""

    settings: Settings
    """Of the run that it would be by itself."""
    weight: float
    """In the mixture."""


def settings_of(config: Mapping[str, Any]) -> Settings:
    """Raises ConfigError."""
    return Settings(
        tree=config,
        run=build_node("run", config["run"]),
        rollout=build_node("rollout", config["rollout"]),
        hardware=build_node("hardware", config["hardware"]),
        algorithm=build_node("algorithm", config["algorithm"]),
        guards={name: build_node("guard", node) for name, node in config["guards"].items()},
        cassette=build_node("cassette", config["cassette"]),
        budget=build_node("budget", config["budget"]),
        model=build_node("model", config["model"]),
        task=PartNode("task", config["task"]),
        demonstrations=PartNode("demonstrations", config["demonstrations"]),
        judge=PartNode("judge", config["judge"]),
        reward=PartNode("reward", config["reward"]),
        counterfactual=PartNode("counterfactual", config["counterfactual"]),
        engine=PartNode("engine", config["engine"]),
        environment=PartNode("environment", config["environment"]),
        optimizer=PartNode("optimizer", config["optimizer"]),
        suite={
            name: Member(settings=settings_of(tree), weight=config["suite"][name].get("weight", 1.0))
            for name, tree in members_of(config).items()
        },
    )
