"""What a language model is to a judge: messages in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentgrpo.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the model said, and what it took: token counts are 0 where the backend does not say."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    paid: bool = True
    """False: it was replayed (metering.cassette)."""


class Completer(Protocol):
    identity: str
    """All of it that decides what it says (model, sampling): part of the key that verdicts are kept under."""

    async def complete(self, messages: Sequence[Message]) -> Reply:
        """The model's reply. Raises JudgeError; called by many at once."""
        ...

    async def close(self) -> None: ...
