"""The renderer for every model family: plain text, opened by the chat template if there is one.

Without a chat template the opening is the messages' contents, each on a line of its own. With a template, the template
writes the markup around the contents. Either way the episode is then one assistant turn: observations are plain text
inside it (as in Search-R1), so no template has to render a prefix the same way twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Message, Piece
from agentgrpo.renderers.base import Renderer
from agentgrpo.renderers.chat import ChatTemplate
from agentgrpo.renderers.tokens import FastTokenizer, OutsideEncoder, TrustedEncoder, encode_pieces, framed


class PlainRenderer:
    """Implements renderers.base.Renderer for any fast tokenizer."""

    in_turns = False

    def __init__(self, *, tokenizer: FastTokenizer, chat_template: str = "auto") -> None:
        """chat_template: auto (use the tokenizer's if it has one), always or never. Raises ConfigError for another
        value, for always without a template, and for a tokenizer that cannot keep untrusted text harmless."""
        if chat_template not in ("auto", "always", "never"):
            raise ConfigError(f"chat_template '{chat_template}': auto, always or never is allowed; choose one")
        if chat_template == "always" and not tokenizer.chat_template:
            raise ConfigError("chat_template 'always': this tokenizer has no chat template; use 'auto' or 'never'")
        self._trusted = TrustedEncoder(tokenizer)
        self._outside = OutsideEncoder(tokenizer)
        self.longest_token = self._trusted.longest_token
        self._template: ChatTemplate | None = None
        self._opening = self._outside
        if chat_template == "never" or not tokenizer.chat_template:
            self._opening = OutsideEncoder(tokenizer, begins=True)
        else:
            self._template = ChatTemplate(tokenizer=tokenizer, trusted=self._trusted, outside=self._outside)
        self._begin = _leading_bos(tokenizer)
        self.stop_token_ids: tuple[int, ...] = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)

    def open(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Plain: "\\n".join(contents) + "\\n", after the BOS token if the tokenizer itself would begin with one. Raises
        ConfigError if the chat template refuses or drops a message."""
        if self._template is None:
            return self._begin + self._opening.encode("\n".join(m.content for m in messages) + "\n")
        return self._template.encode(messages)

    def observe(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        return encode_pieces(pieces, trusted=self._trusted, outside=self._outside)

    def tell(self, pieces: Sequence[Piece], *, sampled: Sequence[int]) -> tuple[int, ...]:
        """Put the pieces on separate lines. Line ends are encoded with the adjacent trusted text, since they may share
        its tokens."""
        return self.observe(framed("\n", pieces, "\n"))

    def encode_action(self, text: str) -> tuple[int, ...]:
        return self._trusted.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._trusted.decode(token_ids)


def takes_system(renderer: Renderer) -> bool:
    """Return whether a system message can be rendered: no chat template, or one with a system role."""
    try:
        renderer.open((Message(role="system", content="s"), Message(role="user", content="u")))
    except ConfigError:
        return False
    return True


def _leading_bos(tokenizer: FastTokenizer) -> tuple[int, ...]:
    """Return the BOS token if the tokenizer puts one before every text (Llama, Gemma), else nothing."""
    around = tokenizer.backend_tokenizer.encode("", add_special_tokens=True).ids
    return (around[0],) if around and around[0] == tokenizer.bos_token_id else ()
