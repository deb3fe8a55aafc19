"""An environment of verifiers: its own rollouts ask the policy, its own rubric says what they are worth."""

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
    """Raises ConfigError for an interpreter that is not there."""

    name: ClassVar[str] = "verifiers"
    takes_posts: ClassVar[bool] = False

    renderer: ToolRenderer
    id: str
    """Of the installed package, as verifiers.load_environment takes it."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Of its load_environment."""
    python: str | None = None
    """The interpreter that has verifiers and the package; null = the one that runs this."""
    start_timeout_s: float = 120.0
    """Until the process that holds it answers."""
    reward_range: tuple[float, float] | None = None
    """Between which numbers the rubric's reward must be; an attempt that it puts out of it has failed. null = any."""

    @cached_property
    def program(self) -> VerifiersProgram:
        return VerifiersProgram(self.id, self.args, self.python, start_timeout_s=self.start_timeout_s)

    async def probe(self) -> None:
        """Raises EnvironmentFailure where the process does not come up."""
        await self.program.ready()

    async def close(self) -> None:
        await self.program.close()
        await super().close()
