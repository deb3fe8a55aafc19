"""The keyword arguments of the tool agent: its parts, and every limit and switch with its default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Message, Piece, Task
from agentgrpo.engines.base import Engine
from agentgrpo.environments.base import Figures
from agentgrpo.environments.tools.state import tool_figures
from agentgrpo.renderers.base import ToolRenderer
from agentgrpo.tools.base import Tool
from agentgrpo.tools.toolbox import Toolbox
from agentgrpo.tools.workspace import Workspaces

_AT_LEAST = {
    "max_turns": 1,
    "max_context": 2,
    "min_context_left": 1,
    "max_tool_output_tokens": 1,
    "max_concurrent_tools": 1,
    "tool_retries": 0,
    "max_calls": 0,
    "max_consecutive_format_errors": 1,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class ToolOptions:
    """Raises ConfigError for values out of range and for tools whose schemas are none."""

    engine: Engine
    renderer: ToolRenderer
    tools: Mapping[str, Tool]
    """By the names that the policy calls them by; there may be none."""
    environments: Workspaces
    prices: Mapping[str, float] = field(default_factory=dict)
    """Of one call, by tool, in place of the agent's own (see figures)."""

    system_prompt: str | None = None
    """Put before the task's own messages as a system message; null = none."""
    max_turns: int = 10
    """Sampled turns."""
    max_context: int | None = 4096
    """Tokens of an episode; null = as many as the engine holds."""
    min_context_left: int = 100
    """No turn is sampled with fewer tokens left."""
    tool_timeout_s: float = 30.0
    """Of one attempt at one call; past it the policy is told so."""
    max_tool_output_tokens: int = 500
    max_concurrent_tools: int = 32
    """Calls of one tool under way at once, of all episodes."""
    tool_retries: int = 1
    """Further attempts, with the same arguments, at a call whose infrastructure failed."""
    max_calls: int | None = None
    """Calls an episode may make; the others are refused. null = any number."""
    max_consecutive_format_errors: int = 3
    parallel_calls: bool = True
    """Make the calls of one turn side by side, but for those of tools that write into the workspace."""

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"agent.{name} {value}: {least} or more is allowed; raise it")
        if not self.tool_timeout_s > 0:
            raise ConfigError(f"agent.tool_timeout_s {self.tool_timeout_s}: more than 0 is allowed; raise it")
        _ = self.toolbox  # a tool without a proper schema is an error of construction

    @cached_property
    def figures(self) -> Figures:
        return tool_figures(tuple(self.tools))

    def opening(self, task: Task) -> tuple[int, ...]:
        """System prompt, then the task's own messages, with the tools as the renderer's model family expects them.
        Raises ConfigError where they cannot be written so."""
        system = [] if self.system_prompt is None else [Message(role="system", content=self.system_prompt)]
        return self.renderer.open_with_tools([*system, *task.messages], self.toolbox.specs)

    def rehearse(self, task: Task) -> None:
        """See environments.base.Rehearsing."""
        held = self.engine.max_context
        room, taken = min(held, self.max_context or held), len(self.opening(task))
        if room - taken < self.min_context_left:
            raise ConfigError(
                f"task {task.id} opens with {taken} tokens, tools included: of agent.max_context={self.max_context} "
                f"(the engine holds {held}) fewer than agent.min_context_left={self.min_context_left} are left for a "
                "turn; raise the lower of the two (no model holds more than its own positions), lower the second, or "
                "offer fewer tools"
            )

    @cached_property
    def toolbox(self) -> Toolbox:
        return Toolbox(
            self.tools,
            count_tokens=lambda text: len(self.renderer.observe([Piece(self.renderer.written(text), trusted=False)])),
            timeout_s=self.tool_timeout_s,
            max_output_tokens=self.max_tool_output_tokens,
            retries=self.tool_retries,
            max_concurrent=self.max_concurrent_tools,
            prices=self.figures.priced(self.prices),
        )
