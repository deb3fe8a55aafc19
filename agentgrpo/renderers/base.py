"""What a renderer is: messages and observations to tokens, sampled tokens to text and to calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agentgrpo.core.messages import ParsedTurn, ToolReply, ToolSpec
from agentgrpo.core.types import Message, Piece


class Renderer(Protocol):
    stop_token_ids: tuple[int, ...]
    """Tokens that end a turn in this model family (its eos)."""
    in_turns: bool
    """What the environment says is a message of its own. False: an episode is one turn of the policy's, into which the
    environment writes (as in Search-R1)."""
    longest_token: int
    """Characters that one token stands for at most: a text of more than n times as many takes more than n tokens,
    which needs no tokenizer to say."""

    def open(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of the opening context, ready for the policy's first token. Message text is untrusted."""
        ...

    def observe(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        """Token ids of the pieces as they are. Trusted ones may use the vocabulary's added tokens; untrusted ones are
        encoded without any."""
        ...

    def tell(self, pieces: Sequence[Piece], *, sampled: Sequence[int]) -> tuple[int, ...]:
        """Token ids to append after the turn `sampled` where the environment has a word that answers no call (what was
        found, a format error, the last chance): the turn's end where it was cut short, the pieces, and the opening of
        the policy's next turn."""
        ...

    def encode_action(self, text: str) -> tuple[int, ...]:
        """Token ids a policy would sample to write `text`: for demonstrations only, never for sampled text."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of sampled tokens, control tokens spelled out."""
        ...


class ToolRenderer(Renderer, Protocol):
    """A renderer that can speak of tools. The context only ever grows: whatever it returns is appended to the tokens
    that the model has seen, and none of those is ever rendered again."""

    stop_strings: tuple[str, ...]
    """Strings that end a turn besides stop_token_ids."""

    def open_with_tools(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """`open`, with the tools described as the model family expects."""
        ...

    def parse(self, token_ids: Sequence[int]) -> ParsedTurn:
        """Reads one sampled turn, and nothing but sampled tokens. Never raises: what cannot be read is a MalformedCall
        or a turn without action."""
        ...

    def answered(self, context: str) -> list[str]:
        """The texts of the replies that a context shows, in order. For demonstrators, whose tools write none of the
        family's marks: in what a stranger wrote, it may find too many."""
        ...

    def reply(self, replies: Sequence[ToolReply], *, sampled: Sequence[int]) -> tuple[int, ...]:
        """Token ids to append after the turn `sampled`: its end where it was cut short, the replies in order (untrusted
        text), and the opening of the policy's next turn."""
        ...

    def written(self, text: str) -> str:
        """The text of a reply as `reply` writes it between its markup: its tokens are what a result costs."""
        ...

    def write(self, turn: ParsedTurn) -> str:
        """The text a policy would sample for `turn`, stop string included: for demonstrations (encode_action)."""
        ...
