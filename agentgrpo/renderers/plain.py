"""The renderer for every model family: plain text, opened by the chat template where there is one.

Without a chat template the opening is the messages' contents, each on a line of its own. With one, the template writes
what stands around the contents. Either way the episode then is one assistant turn: what the environment adds is plain
text inside it (as in Search-R1), so no template has to be trusted to render a prefix the same way twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentgrpo.errors import ConfigError
from agentgrpo.renderers.tokens import FastTokenizer, OutsideEncoder, TrustedEncoder
from agentgrpo.types import Message, Piece

# stands for the content of message i while the template is rendered; letters that templates neither trim nor test for
_SLOT = "\u27e6content-{}\u27e7"
_SLOTS = re.compile("\u27e6content-(\\d+)\u27e7")


class PlainRenderer:
    """Implements renderers.base.Renderer for any fast tokenizer."""

    def __init__(self, *, tokenizer: FastTokenizer, chat_template: str = "auto") -> None:
        """`chat_template`: auto (use the tokenizer's where it has one), always, never. Raises ConfigError for another
        word, for always without a template, and for a tokenizer that cannot keep text from outside harmless."""
        if chat_template not in ("auto", "always", "never"):
            raise ConfigError(f"chat_template '{chat_template}': auto, always or never is allowed; choose one")
        if chat_template == "always" and not tokenizer.chat_template:
            raise ConfigError("chat_template 'always': this tokenizer has no chat template; use 'auto' or 'never'")
        self._tokenizer = tokenizer
        self._templated = chat_template != "never" and bool(tokenizer.chat_template)
        self._trusted = TrustedEncoder(tokenizer)
        self._outside = OutsideEncoder(tokenizer)
        self._begin = _leading_bos(tokenizer)
        self.stop_token_ids: tuple[int, ...] = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)

    def open(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Plain: "\\n".join(contents) + "\\n", after the BOS token where the tokenizer itself would begin with one.
        Raises ConfigError where the chat template refuses or loses a message."""
        if not self._templated:
            return self._begin + self._outside.encode("\n".join(m.content for m in messages) + "\n")
        ids: list[int] = []
        # re.split with one group: glue, number of the message, glue, number, ..., glue
        for i, part in enumerate(_SLOTS.split(self._template(messages))):
            ids.extend(self._outside.encode(messages[int(part)].content) if i % 2 else self._trusted.encode(part))
        return tuple(ids)

    def _template(self, messages: Sequence[Message]) -> str:
        """The template's text for the conversation, with a slot where each content belongs."""
        turns = [{"role": m.role, "content": _SLOT.format(i)} for i, m in enumerate(messages)]
        roles = ", ".join(m.role for m in messages)
        try:
            text = str(self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
        except Exception as e:  # templates refuse by raising whatever they like
            raise ConfigError(
                f"the chat template refuses messages of roles {roles}: {e}; give roles it knows or chat_template=never"
            ) from e
        if _SLOTS.findall(text) != [str(i) for i in range(len(messages))]:
            raise ConfigError(
                f"the chat template does not show each of the messages (roles {roles}) once and in order; it must: "
                "give roles it knows or chat_template=never"
            )
        return text

    def observe(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        """Each piece is encoded on its own, so that no token can span the border of trust."""
        ids: list[int] = []
        for text, trusted in pieces:
            ids.extend(self._trusted.encode(text) if trusted else self._outside.encode(text))
        return tuple(ids)

    def encode_action(self, text: str) -> tuple[int, ...]:
        return self._trusted.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._trusted.decode(token_ids)


def _leading_bos(tokenizer: FastTokenizer) -> tuple[int, ...]:
    """The BOS token where the tokenizer puts one before every text (Llama, Gemma), nothing elsewhere."""
    around = tokenizer.backend_tokenizer.encode("", add_special_tokens=True).ids
    return (around[0],) if around and around[0] == tokenizer.bos_token_id else ()
