"""Typed settings read from a configuration; after that, no code looks up its keys.

config --settings_of--> settings, each with its own type, and nodes for parts that need other parts to be built
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
    """The settings of one configuration, group by group."""

    tree: Mapping[str, Any]
    """The composed configuration, for comparisons."""
    run: RunSettings
    rollout: RolloutSettings
    hardware: Hardware
    algorithm: Algorithm
    guards: Mapping[str, Guard]
    cassette: CassetteSettings
    budget: Budget
    model: WarmStart | ModelPath
    """Source of the start weights."""
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
        """The settings of each member, or of the single environment."""
        return [member.settings for member in self.suite.values()] or [self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of a suite."""

    settings: Settings
    """The settings of the member as a run by itself."""
    weight: float
    """Weight in the mixture."""


def settings_of(config: Mapping[str, Any]) -> Settings:
    """Read the settings of a configuration. Raises ConfigError."""
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
