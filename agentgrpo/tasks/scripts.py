"""Demonstrators as scripts: a generator yields tool calls, receives their results, and returns the answer."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeAlias

from agentgrpo.core.messages import ParsedTurn
from agentgrpo.core.types import ToolCall

Script: TypeAlias = Generator[ParsedTurn, str, ParsedTurn]
"""Yields tool calls, is sent their results, returns the final answer."""


def call(tool: str, **arguments: str) -> ParsedTurn:
    return ParsedTurn(calls=(ToolCall(name=tool, arguments=arguments),))


def answer(value: str) -> ParsedTurn:
    return ParsedTurn(answer=value)


def turn_after(answered: Sequence[str], script: Script) -> ParsedTurn:
    """The script's next turn after the results `answered`."""
    try:
        turn = next(script)
        for observed in answered:
            turn = script.send(observed)
    except StopIteration as end:
        last: ParsedTurn = end.value
        return last
    return turn
