"""The interface of renderers: messages and observations to tokens, sampled tokens to text and to calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agentgrpo.core.messages import ParsedTurn, ToolReply, ToolSpec
from agentgrpo.core.types import Message, Piece


class Renderer(Protocol):
    stop_token_ids: tuple[int, ...]
    """Tokens that end a turn in this model family (its eos)."""
    in_turns: bool
    """Each observation is a separate message. False: an episode is a single turn of the policy, into which the
    environment writes (as in Search-R1)."""
    longest_token: int
    """Length of the longest token in characters. A text longer than n times this takes more than n tokens; no tokenizer
    is needed to know that."""

    def open(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of the opening context, ready for the policy's first token. Message text is untrusted."""
        ...

    def observe(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        """Token ids of the pieces as they are. Trusted ones may use the vocabulary's added tokens; untrusted ones are
        encoded without any."""
        ...

    def tell(self, pieces: Sequence[Piece], *, sampled: Sequence[int]) -> tuple[int, ...]:
        """Token ids to append after the turn `sampled` for an observation that answers no call (results, a format
        error, the last chance): the turn's end if it was cut short, the pieces, and the opening of the policy's next
        turn."""
        ...

    def encode_action(self, text: str) -> tuple[int, ...]:
        """Token ids that a policy would sample to write `text`: for demonstrations only, never for sampled text."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of sampled tokens, control tokens spelled out."""
        ...


class ToolRenderer(Renderer, Protocol):
    """A renderer that supports tools. The context only grows: the returned tokens are appended to the tokens that the
    model has seen, which are never rendered again."""

    stop_strings: tuple[str, ...]
    """Strings that end a turn besides stop_token_ids."""

    def open_with_tools(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """`open`, with the tools described as the model family expects."""
        ...

    def parse(self, token_ids: Sequence[int]) -> ParsedTurn:
        """Parse one sampled turn, from sampled tokens only. Never raises: unreadable text becomes a MalformedCall or a
        turn without action."""
        ...

    def answered(self, context: str) -> list[str]:
        """Return the texts of the replies in a context, in order. For demonstrators, whose tools never write the
        family's marks: untrusted text could add false replies."""
        ...

    def reply(self, replies: Sequence[ToolReply], *, sampled: Sequence[int]) -> tuple[int, ...]:
        """Token ids to append after the turn `sampled`: its end if it was cut short, the replies in order (untrusted
        text), and the opening of the policy's next turn."""
        ...

    def written(self, text: str) -> str:
        """Return the text of a reply as `reply` writes it between its markup; a result costs the tokens of this
        text."""
        ...

    def write(self, turn: ParsedTurn) -> str:
        """Return the text that a policy would sample for `turn`, stop string included: for demonstrations
        (encode_action)."""
        ...
