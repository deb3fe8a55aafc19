"""Policies in the three environments, from an engine, a renderer and the environment's own options."""

from __future__ import annotations

from typing import Any

from agentgrpo.environments.memory.environment import MemoryEnvironments
from agentgrpo.environments.search.environment import SearchEnvironments
from agentgrpo.environments.tools.environment import ToolEnvironments
from agentgrpo.rollout.loop import PolicyRunner


def search_runner(*, engine: Any, renderer: Any, **options: Any) -> PolicyRunner:
    environment = SearchEnvironments(renderer=renderer, **options)
    return PolicyRunner(environment=environment, engine=engine, renderer=renderer)


def tool_runner(*, engine: Any, renderer: Any, **options: Any) -> PolicyRunner:
    environment = ToolEnvironments(renderer=renderer, **options)
    return PolicyRunner(environment=environment, engine=engine, renderer=renderer)


def memory_runner(*, engine: Any, renderer: Any, **options: Any) -> PolicyRunner:
    environment = MemoryEnvironments(renderer=renderer, **options)
    return PolicyRunner(environment=environment, engine=engine, renderer=renderer)
