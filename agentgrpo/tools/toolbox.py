"""The only place that calls tools: every call ends in time and with one of five outcomes, whatever the tool does.

    call -> unknown? malformed? arguments fit? -> Tool.prepare -> a slot -> deadline( Tool.call ) -> cut to length
         -> (reply, record)

The policy is told of its own mistakes and of the tool's failures. Any other failure (ToolError, or an exception that
escapes from a tool) is retried with the same arguments and then raised as an infrastructure failure of the episode.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from agentgrpo.core.concurrency import Limiter, off_loop
from agentgrpo.core.errors import ConfigError, EpisodeError, ToolError, boundary
from agentgrpo.core.messages import AnyCall, MalformedCall, ToolReply, ToolSpec
from agentgrpo.core.outside import awaited, stopped
from agentgrpo.core.stages import Stage, calling
from agentgrpo.core.types import Outcome, ToolCall, ToolRecord
from agentgrpo.core.untrusted import visible
from agentgrpo.tools.base import Tool, ToolResult, Workspace
from agentgrpo.tools.schema import ArgumentSchema

# --- Cut text to a number of tokens.

MARKER = "[... output truncated ...]"


def cut(text: str, max_tokens: int, count_tokens: Callable[[str], int]) -> tuple[str, bool]:
    """Return `text` and whether it was cut. A text of more than max_tokens tokens is cut to the longest beginning that
    fits (found by bisection), followed by a line MARKER. If not even the marker fits, return the marker alone.

    The cost does not grow with the text: the part beyond the cut is never encoded."""
    window = 4 * max_tokens
    while window < len(text) and count_tokens(text[:window]) <= max_tokens:
        window *= 2  # long tokens, for example runs of spaces
    if window >= len(text) and count_tokens(text) <= max_tokens:
        return text, False
    fits, too_long = 0, min(window, len(text)) + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if count_tokens(_marked(text, middle)) <= max_tokens:
            fits = middle
        else:
            too_long = middle
    return _marked(text, fits), True


def _marked(text: str, length: int) -> str:
    return f"{text[:length]}\n{MARKER}" if length else MARKER


GRACE_S = 0.5
"""Seconds that a cancelled call has to finish; after that it is abandoned."""
_LOG = logging.getLogger(__name__)
Answer = tuple[ToolReply, ToolRecord]


class Toolbox:
    """Calls `tools` for any number of concurrent episodes. Holds no state of an episode."""

    def __init__(
        self,
        tools: Mapping[str, Tool],
        *,
        count_tokens: Callable[[str], int],
        timeout_s: float = 30.0,
        max_output_tokens: int = 500,
        retries: int = 1,
        max_concurrent: int = 32,
        prices: Mapping[str, float] | None = None,
    ) -> None:
        """tools: by the names that the policy knows. count_tokens: counts the tokens of untrusted text as the policy's
        renderer encodes it. max_concurrent: concurrent calls of one tool. prices: tool -> price of a call, 0.0 by
        default. Raises ConfigError."""
        if not timeout_s > 0 or max_output_tokens < 1 or retries < 0:
            raise ConfigError(
                f"tool timeout {timeout_s} s, {max_output_tokens} output tokens, {retries} retries; more than 0 s, 1 "
                "token or more and 0 retries or more are allowed"
            )
        for name, tool in tools.items():
            if tool.spec.name != name:
                raise ConfigError(f"tool {name!r} has the name {tool.spec.name!r} in its spec; use one name")
        self._tools = dict(tools)
        self._schemas = {name: ArgumentSchema(name, tool.spec.parameters) for name, tool in tools.items()}
        self._count_tokens, self._max_output_tokens = count_tokens, max_output_tokens
        self._timeout_s, self._retries = timeout_s, retries
        # Each tool has its own limiter: a tool that hangs blocks only its own calls.
        self._limiters = {
            name: Limiter(min(max_concurrent, getattr(tool, "at_once", None) or max_concurrent))
            for name, tool in tools.items()
        }
        self._prices = dict(prices or {})

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools.values())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    async def call_all(
        self, calls: Sequence[AnyCall], workspace: Workspace, *, turn: int, parallel: bool = True
    ) -> list[Answer]:
        """Run the calls of one turn concurrently (one after the other if not parallel); answers are in the order of the
        calls. Calls of `exclusive` tools always run one after the other, in the order in which the policy wrote them.
        If a call fails, raises the first failure after all other calls have stopped."""
        answers: dict[int, Answer] = {}

        async def run(chain: Sequence[int]) -> None:
            for i in chain:
                answers[i] = await self.call(calls[i], workspace, turn=turn)

        alone = [i for i, call in enumerate(calls) if not parallel or self._is_exclusive(call)]
        try:
            async with asyncio.TaskGroup() as running:
                for chain in [alone, *([i] for i in range(len(calls)) if i not in alone)]:
                    if chain:
                        running.create_task(run(chain))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [answers[i] for i in range(len(calls))]

    async def call(self, call: AnyCall, workspace: Workspace, *, turn: int) -> Answer:
        """Return the reply for the policy and the record of the call. Raises ToolError, or another EpisodeError that
        the tool's backend raises."""
        result, seconds = self._refusal(call), 0.0
        if result is None and isinstance(call, ToolCall):
            result, seconds = await self._attempts(call, workspace)
        assert result is not None
        text, was_cut = await off_loop(partial(self._shown, result.text), size=len(result.text))
        record = ToolRecord(
            name=call.name,
            arguments={} if isinstance(call, MalformedCall) else call.arguments,
            outcome=result.outcome,
            turn=turn,
            num_results=result.num_results,
            result_ids=result.result_ids,
            cached=result.cached,
            detail=result.detail,
            num_bytes=len(result.text.encode("utf-8", "replace")),
            was_cut=was_cut,
            cost=self._cost(call),
            seconds=seconds,
        )
        return ToolReply(call=call, text=text), record

    def _shown(self, text: str) -> tuple[str, bool]:
        return cut(visible(text), self._max_output_tokens, self._count_tokens)

    def refuse(self, call: AnyCall, why: str, *, turn: int) -> Answer:
        """The answer to a call that is refused without being made: the policy's fault."""
        arguments = {} if isinstance(call, MalformedCall) else call.arguments
        text = f"error: {why}"
        record = ToolRecord(
            name=call.name,
            arguments=arguments,
            outcome=Outcome.INVALID_ARGS,
            turn=turn,
            detail=why,
            num_bytes=len(text.encode()),
            cost=self._cost(call),
        )
        return ToolReply(call=call, text=text), record

    def _cost(self, call: AnyCall) -> float:
        """The price of the call, whatever its outcome: an evaluation charges for every call that the policy writes
        (environments.base.Figures.cost)."""
        return self._prices.get(call.name, 0.0) if call.name in self._tools else 0.0

    def _is_exclusive(self, call: AnyCall) -> bool:
        return bool(getattr(self._tools.get(call.name), "exclusive", False))

    def _refusal(self, call: AnyCall) -> ToolResult | None:
        """The reason to refuse the call, or None."""
        if isinstance(call, MalformedCall):
            return replace(ToolResult.refused(call.problem), detail="malformed")
        if call.name not in self._tools:
            known = ", ".join(self._tools) or "none"
            text = f"error: there is no tool {call.name}; there are {known}"
            return ToolResult(outcome=Outcome.TOOL_NOT_FOUND, text=text)
        problem = self._schemas[call.name].problem(call.arguments)
        return None if problem is None else ToolResult.refused(problem)

    async def _attempts(self, call: ToolCall, workspace: Workspace) -> tuple[ToolResult, float]:
        """Return the result and the seconds that the attempts took, without the time spent waiting for a slot."""
        tool, seconds = self._tools[call.name], 0.0
        prepare = getattr(tool, "prepare", None)
        for attempt in range(self._retries + 1):
            try:
                with boundary(ToolError, f"tool {call.name}"):
                    if prepare is not None:  # holds no slot meanwhile: the calls it waits for may need one
                        await prepare(workspace)
                    async with self._limiters[call.name]:
                        began = time.perf_counter()
                        try:
                            result = await self._within_deadline(call, workspace)
                        finally:
                            seconds += time.perf_counter() - began
                    return result, seconds
            except EpisodeError as e:
                if attempt == self._retries:
                    raise
                _LOG.info("tool %s failed (%s: %s): attempt %d", call.name, e.kind, e, attempt + 2)
        raise AssertionError("unreachable")

    async def _within_deadline(self, call: ToolCall, workspace: Workspace) -> ToolResult:
        """One attempt, in a separate asyncio task: even a tool that swallows its cancellation cannot hold up the
        episode.
        """
        name = f"tool {call.name}"
        work = awaited(name, self._tools[call.name].call, call.arguments, workspace)
        task = asyncio.get_running_loop().create_task(work, name=name)
        try:
            with calling(Stage.TOOLS):
                await asyncio.wait({task}, timeout=self._timeout_s)
        finally:  # also when this coroutine is cancelled
            is_late = not task.done()
            if is_late:
                await stopped(task, task, what=name, patience_s=GRACE_S)
        if is_late:
            text = f"error: not done within {self._timeout_s:g} s"
            return ToolResult(outcome=Outcome.TIMEOUT, text=text)
        result = task.result().result()
        if not isinstance(result, ToolResult):
            raise ToolError(f"tool {call.name}: it returned a {type(result).__name__}; a ToolResult is needed")
        return result
