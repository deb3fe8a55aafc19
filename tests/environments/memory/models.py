"""Models for tests that say what a function of the messages says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentgrpo.core.types import Message
from agentgrpo.judges.llm.completer import Reply

Says = Callable[[Sequence[Message]], str]


class Spoken:
    """4 tokens in, 2 out, whatever is said. `asked`: the messages of every call."""

    def __init__(self, says: Says | str, identity: str = "spoken") -> None:
        self.identity = identity
        self.asked: list[tuple[Message, ...]] = []
        self.closed = 0
        self._says = says

    async def complete(self, messages: Sequence[Message], schema: object = None) -> Reply:
        self.asked.append(tuple(messages))
        text = self._says if isinstance(self._says, str) else self._says(messages)
        return Reply(text=text, prompt_tokens=4, completion_tokens=2)

    async def close(self) -> None:
        self.closed += 1


def in_order(*replies: str) -> Says:
    """One reply a call; an error where more are asked for."""
    left = list(replies)
    return lambda messages: left.pop(0)
