"""What a renderer is: messages and observations to tokens, sampled tokens to text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agentgrpo.types import Message, Piece


class Renderer(Protocol):
    stop_token_ids: tuple[int, ...]
    """Tokens that end a turn in this model family (its eos)."""

    def open(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of the opening context, ready for the policy's first token. Message text is untrusted."""
        ...

    def observe(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        """Token ids of what the environment adds between two sampled turns. Trusted pieces may use the vocabulary's
        added tokens; untrusted ones are encoded without any."""
        ...

    def encode_action(self, text: str) -> tuple[int, ...]:
        """Token ids a policy would sample to write `text`: for demonstrations only, never for sampled text."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of sampled tokens, control tokens spelled out."""
        ...
