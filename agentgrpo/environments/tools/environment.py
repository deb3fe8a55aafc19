"""The tool environment: the policy calls tools before it answers, within limits.

    turn -> all calls, side by side -> replies

The renderer parses turns, and the toolbox makes the calls. Users' own environments build on this one: see
environments.own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import AnyCall, ToolReply
from agentgrpo.core.types import Episode, Exit, Message, Piece, Task, ToolRecord
from agentgrpo.environments.base import Environment, Observation, Scores, Turn
from agentgrpo.environments.conversation import counted, size_of
from agentgrpo.environments.factory import Attempt, EnvironmentDefaults, TurnLimits
from agentgrpo.environments.figures import Figures
from agentgrpo.environments.tools.state import ToolState, episode_metrics, tool_figures
from agentgrpo.renderers.base import ToolRenderer
from agentgrpo.tools.base import Tool
from agentgrpo.tools.hidden_tests.sandboxed import TESTS_FAILED, TESTS_PASSED, HiddenTests
from agentgrpo.tools.toolbox import Toolbox
from agentgrpo.tools.workspace import EpisodeWorkspace, Workspaces

NO_ACTION = "No tool call and no final answer was found. Call a tool or give the final answer."
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
class ToolEnvironments(EnvironmentDefaults):
    """Implements environments.factory.EnvironmentFactory. Raises ConfigError for values out of range and for tools with
    invalid schemas.

    Malformed calls, unknown tools, wrong arguments and turns without an action are the policy's mistakes and are
    reported to it, as are a tool's timeouts and errors. A tool whose infrastructure fails raises its EpisodeError.
    """

    name = "tools"
    pays_itself = True
    """Its tasks need no reference answers if hidden tests give the reward."""
    renderer: ToolRenderer
    tools: Mapping[str, Tool] = field(default_factory=dict)
    """Tools by the name that the policy uses; may be empty."""
    workspaces: Workspaces = field(default_factory=Workspaces)
    prices: Mapping[str, float] = field(default_factory=dict)
    """Price of one call, by tool, in place of the environment's own (see figures)."""

    system_prompt: str | None = None
    """Put before the task's own messages as a system message; null = none."""
    max_turns: int = 10
    """Sampled turns."""
    max_context: int | None = 4096
    """Tokens of an episode; null = as many as the engine holds."""
    min_context_left: int = 100
    """No turn is sampled with fewer tokens left."""
    tool_timeout_s: float = 30.0
    """Seconds for one attempt at a call; a timeout is reported to the policy."""
    max_tool_output_tokens: int = 500
    max_concurrent_tools: int = 32
    """Concurrent calls of one tool, over all episodes."""
    tool_retries: int = 1
    """Further attempts, with the same arguments, at a call whose infrastructure failed."""
    max_calls: int | None = None
    """Calls that an episode may make; further ones are refused. null = any number."""
    max_consecutive_format_errors: int = 3
    tests: HiddenTests | None = None
    """Runs each task's hidden tests on the workspace at the end; null = no tests."""
    parallel_calls: bool = True
    """Make the calls of one turn side by side, except calls of tools that write into the workspace."""

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"environment.{name} {value}: {least} or more is allowed; raise it")
        if not self.tool_timeout_s > 0:
            raise ConfigError(f"environment.tool_timeout_s {self.tool_timeout_s}: more than 0 is allowed; raise it")
        _ = self.toolbox  # a tool without a proper schema is an error of construction
        if self.tests is not None:
            _ = self.tests.sandbox  # and so is a sandbox that does not hold here

    @cached_property
    def figures(self) -> Figures:
        return tool_figures(tuple(self.tools), quality=TESTS_PASSED if self.tests else None)

    @property
    def limits(self) -> TurnLimits:
        return TurnLimits(
            max_turns=self.max_turns, max_context=self.max_context, min_context_left=self.min_context_left
        )

    @property
    def metrics(self) -> frozenset[str]:
        known = episode_metrics(ToolState(), tools=self.toolbox.names)
        tested = ("reward", TESTS_PASSED, TESTS_FAILED) if self.tests else ()
        return frozenset({*known, *tested, *(f"exit_{e.value}" for e in Exit)})

    def make(self, attempt: Attempt) -> Environment:
        return ToolEnvironment(self, attempt)

    def opening(self, task: Task) -> list[Message]:
        return self.opened(task.messages)

    def opened(self, messages: Sequence[Message]) -> list[Message]:
        """Return `messages` after the system prompt, unless they begin with a system message."""
        if self.system_prompt is None or (messages and messages[0].role == "system"):
            return list(messages)
        return [Message(role="system", content=self.system_prompt), *messages]

    def rehearse(self, task: Task, *, max_context: int) -> None:
        """See environments.factory.EnvironmentFactory."""
        if self.tests is not None:
            self.tests.refuse_task(task)
        room = min(max_context, self.max_context or max_context)
        taken = self._opening_tokens(task, room)
        if room - taken < self.min_context_left:
            raise ConfigError(
                f"task {task.id} opens with {taken} tokens, tools included: "
                f"environment.max_context={self.max_context} (the engine holds {max_context}) leaves fewer than "
                f"environment.min_context_left={self.min_context_left} for a turn; raise the lower of the two "
                "(no model holds more than its own positions), lower the second, or offer fewer tools"
            )

    def opening_tokens(self, task: Task, *, most: int) -> int | None:
        """See environments.factory.EnvironmentFactory."""
        return self._opening_tokens(task, most)

    def _opening_tokens(self, task: Task, most: int) -> int:
        opening = self.opening(task)
        return counted(
            lambda: len(self.renderer.open_with_tools(opening, self.toolbox.specs)),
            size=size_of(opening),
            most=most,
            renderer=self.renderer,
        )

    async def close(self) -> None:
        if self.tests is not None:
            await self.tests.close()

    @cached_property
    def toolbox(self) -> Toolbox:
        return self._toolbox_of(self.tools)

    def _toolbox_of(self, tools: Mapping[str, Tool]) -> Toolbox:
        return Toolbox(
            tools,
            count_tokens=lambda text: len(self.renderer.observe([Piece(self.renderer.written(text), trusted=False)])),
            timeout_s=self.tool_timeout_s,
            max_output_tokens=self.max_tool_output_tokens,
            retries=self.tool_retries,
            max_concurrent=self.max_concurrent_tools,
            prices=self.figures.priced(self.prices),
        )


class ToolEnvironment:
    """Implements environments.base.Environment. Subclasses override `reset`, which returns the opening, and `score`,
    which runs while `workspace` still stands."""

    def __init__(self, options: ToolEnvironments, attempt: Attempt) -> None:
        self.options, self.attempt = options, attempt
        self.workspace: EpisodeWorkspace = options.workspaces.open(
            attempt.task, seed=attempt.seed, attempt=attempt.number
        )
        """The attempt's own workspace: its directory is made at first use, with the task's files in it."""
        self.state = ToolState()

    async def reset(self, task: Task) -> Observation:
        return self.opening(self.options.opening(task))

    def opening(self, messages: Sequence[Message]) -> Observation:
        """Return the first observation: `messages`, and all tools on offer."""
        return Observation(messages=messages, tools=self.options.toolbox.specs, metrics=self._metrics())

    async def step(self, turn: Turn) -> Observation:
        already = len(self.state.records)
        messages: Sequence[Message | ToolReply] = ()
        done: Exit | None = None
        if turn.calls:
            self.state.format_errors = 0
            messages = await self._call(turn.calls, turn.index)
        elif turn.answer is not None:
            self.state.answer, done = turn.answer, Exit.ANSWERED
        else:
            self.state.counts["format_error_turns"] += 1
            self.state.format_errors += 1
            if self.state.format_errors >= self.options.max_consecutive_format_errors:
                done = Exit.FORMAT_ERROR_LIMIT
            else:
                messages = [Message.of_pieces([Piece(NO_ACTION, True)])]
        return Observation(
            messages=messages,
            done=done,
            answer=self.state.answer,
            metrics=self._metrics(),
            calls=self.state.records[already:],
        )

    async def score(self, episode: Episode) -> Scores:
        """Return the result of the task's hidden tests, if they are run; other metrics are measured during the
        episode."""
        tests = self.options.tests
        if tests is None:
            return {}
        found = await tests.score(self.attempt.task, self.workspace.path, episode.answer)
        return {"reward": found.share, **found.metrics}

    async def close(self) -> None:
        """Remove the workspace."""
        await self.workspace.__aexit__()

    async def _call(self, calls: Sequence[AnyCall], turn: int) -> list[ToolReply]:
        """Make the calls that the limit allows. Return a reply for every call."""
        options, toolbox = self.options, self.options.toolbox
        left = len(calls) if options.max_calls is None else max(0, options.max_calls - len(self.state.records))
        answers = await toolbox.call_all(calls[:left], self.workspace, turn=turn, parallel=options.parallel_calls)
        why = f"the limit of {options.max_calls} calls is reached; give the final answer"
        answers += [toolbox.refuse(call, why, turn=turn) for call in calls[left:]]
        records: list[ToolRecord] = [record for _, record in answers]
        self.state.note(calls, records, num_refused=len(calls[left:]))
        return [reply for reply, _ in answers]

    def _metrics(self) -> Scores:
        return episode_metrics(self.state, tools=self.options.toolbox.names)
