"""A verifiers environment: its own rollouts ask the policy, and its own rubric scores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from agentgrpo.environments.program.environment import EndpointEnvironments
from agentgrpo.environments.verifiers.process import VerifiersProgram
from agentgrpo.renderers.base import ToolRenderer


@dataclass(frozen=True, kw_only=True, eq=False)
class VerifiersEnvironments(EndpointEnvironments):
    """Environments of one package. Raises ConfigError if the interpreter does not exist."""

    name: ClassVar[str] = "verifiers"
    takes_posts: ClassVar[bool] = False

    renderer: ToolRenderer
    id: str
    """Id of the installed package, as verifiers.load_environment takes it."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of its load_environment."""
    python: str | None = None
    """The interpreter that has verifiers and the package; null = the current one."""
    start_timeout_s: float = 120.0
    """Seconds until the package's process must answer."""
    reward_range: tuple[float, float] | None = None
    """Allowed range of the rubric's reward; an attempt outside it has failed. null = any number."""

    @cached_property
    def program(self) -> VerifiersProgram:
        return VerifiersProgram(self.id, self.args, self.python, start_timeout_s=self.start_timeout_s)

    async def probe(self) -> None:
        """Raises EnvironmentFailure if the process does not start."""
        await self.program.ready()

    async def close(self) -> None:
        await self.program.close()
        await super().close()
