"""A renderer that notes the length of every text that it is asked to read, and in which thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.types import Message, Piece
from agentgrpo.renderers.chat import ChatRenderer
from agentgrpo.renderers.choose import FAMILIES
from tests.renderers import families


class ReadingRenderer(ChatRenderer):
    def __init__(self, name: str = "chatml") -> None:
        self.read: list[int] = []
        self.threads: list[str] = []
        """Of each opening."""
        family = next(f for f in FAMILIES if f.name == name)
        super().__init__(tokenizer=families.tokenizer(name), family=family)
        self.read.clear()

    @property
    def most(self) -> int:
        return max(self.read, default=0)

    def open(self, messages: Sequence[Message]) -> tuple[int, ...]:
        self._note(messages)
        return super().open(messages)

    def open_with_tools(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        self._note(messages)
        self.read += [len(str(tool)) for tool in tools]
        return super().open_with_tools(messages, tools)

    def _note(self, messages: Sequence[Message]) -> None:
        self.threads.append(threading.current_thread().name)
        self.read += [len(message.content) for message in messages]

    def observe(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        self.read += [len(piece.text) for piece in pieces]
        return super().observe(pieces)

    def encode_action(self, text: str) -> tuple[int, ...]:
        self.read.append(len(text))
        return super().encode_action(text)
