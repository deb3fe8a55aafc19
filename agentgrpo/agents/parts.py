"""Agents with parts of their own, such as a reader, which may cost money and memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from agentgrpo.agents.base import Agent
from agentgrpo.engines.base import Engine


@runtime_checkable
class Accounting(Protocol):
    """An Agent whose parts count what they ask of models."""

    def counts(self) -> Mapping[str, float]:
        """Totals by part and name since it was built, such as reader/cost; never a clock, and they never fall."""
        ...


@runtime_checkable
class Replayable(Protocol):
    """An Agent that can be had again, with the same parts, for another engine."""

    def on(self, engine: Engine) -> Agent:
        """Not to be closed besides the one it was made of."""
        ...


def bill_of(agent: Agent) -> Mapping[str, float]:
    """`agent.counts()`; empty for an agent that counts nothing."""
    return agent.counts() if isinstance(agent, Accounting) else {}
