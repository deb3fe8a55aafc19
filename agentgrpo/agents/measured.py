"""An agent that has others to be held against: they need no training, and their figures stand beside its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from agentgrpo.agents.base import Agent


@runtime_checkable
class Measured(Protocol):
    budget: str
    """The column of its figures that says how much the policy spent, of what its baselines may spend as well."""

    def baselines(self, share: Mapping[str, float]) -> Mapping[str, Agent]:
        """By name, in the order shown; their figures are the agent's own, they sample nothing, and their episodes have
        no branches. share: kind of task -> the policy's mean of `budget`; "" = of all tasks, and of kinds that are not
        there."""
        ...


@runtime_checkable
class Annotated(Protocol):
    """A baseline whose figures do not mean quite what the policy's mean."""

    note: str
    """What they mean, in a few words; "" = the same."""


def note_of(agent: Agent) -> str:
    return agent.note if isinstance(agent, Annotated) else ""
