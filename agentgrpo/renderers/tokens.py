"""Text to tokens under two rules: trusted text may use added tokens, text from outside may not.

`split_special_tokens` is no such rule: it leaves added tokens that are not flagged special (`<tool_call>`, `<think>`)
within reach of any document that spells them. Here text from outside meets a clone of the tokenizer that has no added
tokens at all. What this does not do: change the text. A document that spells a control string stays readable as such.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

from tokenizers import Tokenizer

from agentgrpo.errors import ConfigError, DataError

# strings, not tokens: a string of a few hundred tokens costs some 10 KB
_CACHED_STRINGS = 8192
# a rare letter, an emoji, a control character, a byte-order mark: where there is no token for them, <unk> would appear
_RARE = "\u00e9 \u0141 \u6f22 \U0001f642 \u0001 \ufeff"


class FastTokenizer(Protocol):
    """What is needed of a transformers tokenizer: the Rust one inside, its control ids and its chat template."""

    eos_token_id: int | None
    bos_token_id: int | None
    chat_template: Any

    @property
    def all_special_ids(self) -> list[int]: ...

    @property
    def backend_tokenizer(self) -> Tokenizer: ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...


def backend_of(tokenizer: FastTokenizer) -> Tokenizer:
    """A private copy of the Rust tokenizer, without truncation or padding that somebody may have set on it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ConfigError(
            f"tokenizer {type(tokenizer).__name__} has no fast backend; only fast tokenizers (tokenizer.json) are "
            "allowed: convert it, or load the model with its fast tokenizer"
        )
    copy = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


class TrustedEncoder:
    """Encodes text that we wrote, added tokens in use and nothing put around it; decodes what was sampled."""

    def __init__(self, tokenizer: FastTokenizer) -> None:
        self._backend = backend_of(tokenizer)
        self.encode = lru_cache(maxsize=_CACHED_STRINGS)(self._encode)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Every token spelled out, control tokens too; no clean-up of spaces."""
        return str(self._backend.decode(token_ids, skip_special_tokens=False))


class OutsideEncoder:
    """Encodes untrusted text: `encode(text)` never holds the id of an added or special token, whatever the text spells.

    Raises ConfigError at construction for a tokenizer for which that cannot be: one whose added tokens are also plain
    vocabulary, or that writes an added token for letters it does not know.
    """

    def __init__(self, tokenizer: FastTokenizer) -> None:
        original = backend_of(tokenizer)
        spec = json.loads(original.to_str())
        spec["added_tokens"] = []
        spec["post_processor"] = None  # it may name the tokens that were just removed
        self._backend = Tokenizer.from_str(json.dumps(spec))
        added = original.get_added_tokens_decoder()
        self.protected = frozenset(added) | frozenset(tokenizer.all_special_ids)
        self.encode = lru_cache(maxsize=_CACHED_STRINGS)(self._encode)
        self._test([token.content for token in added.values()])

    def _encode(self, text: str) -> tuple[int, ...]:
        # half a surrogate pair, which JSON can carry, is no text: it becomes "?"
        ids: list[int] = self._backend.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids
        if not self.protected.isdisjoint(ids):
            raise DataError(f"untrusted text {text[:80]!r} is encoded with a control token; use another tokenizer")
        return tuple(ids)

    def _test(self, control_strings: Sequence[str]) -> None:
        """Each control string bare, between spaces, between letters and twice; and letters that may have no token."""
        self._try(_RARE, spells=_RARE)
        for control in control_strings:
            for hostile in (control, f" {control} ", f"a{control}b", control * 2):
                self._try(hostile, spells=control)

    def _try(self, hostile: str, *, spells: str) -> None:
        try:
            self._encode(hostile)
        except DataError as e:
            raise ConfigError(
                f"tokenizer: plain text that spells {spells!r} is encoded with the id of an added token, so that "
                "documents could forge control tokens; added tokens must not be reachable by plain text: use a "
                "byte-level tokenizer whose added tokens are no words of its vocabulary"
            ) from e
