"""Text to tokens under two rules: trusted text may use added tokens, text from outside may not.

`split_special_tokens` is no such rule: it leaves added tokens that are not flagged special (`<tool_call>`, `<think>`)
within reach of any document that spells them. Here text from outside meets a clone of the tokenizer that has no added
tokens at all. What this does not do: change the text. A document that spells a control string stays readable as such.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol

from tokenizers import Tokenizer

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import Piece

# strings, not tokens: a string of a few hundred tokens costs some 10 KB
_CACHED_STRINGS = 8192
# characters of a string that is not kept, and is encoded with the interpreter released to other threads
_LONG = 2**14
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
    def special_tokens_map(self) -> dict[str, str]: ...

    @property
    def backend_tokenizer(self) -> Tokenizer: ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...


def backend_of(tokenizer: FastTokenizer, *, begins: bool = False) -> Tokenizer:
    """A private copy of the Rust tokenizer, without truncation or padding that somebody may have set on it.

    SentencePiece tokenizers put a space of their own before a text that begins the context. The copy is for texts that
    continue it, unless `begins`: there the space would be one that nobody wrote."""
    state = _rust(tokenizer).to_str()
    copy = Tokenizer.from_str(state if begins else _continuing(state))
    copy.no_truncation()
    copy.no_padding()
    return copy


def _rust(tokenizer: FastTokenizer) -> Tokenizer:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if isinstance(backend, Tokenizer):
        return backend
    raise ConfigError(
        f"tokenizer {type(tokenizer).__name__} has no fast backend; only fast tokenizers (tokenizer.json) are "
        "allowed: convert it, or load the model with its fast tokenizer"
    )


def _continuing(state: str) -> str:
    """The state of a tokenizer that puts no space of its own before a text."""
    if '"prepend_scheme":"first"' not in state:
        return state  # nearly all: reading the JSON of a large vocabulary takes a second
    spec = json.loads(state)
    cut = spec["pre_tokenizer"]
    for step in cut.get("pretokenizers", [cut]):
        if step.get("prepend_scheme") == "first":
            step["prepend_scheme"] = "never"
    return json.dumps(spec)


def added_tokens(tokenizer: FastTokenizer) -> dict[str, int]:
    """Id by text of every token that is no result of merging bytes or letters: what text from outside may not spell."""
    added = _rust(tokenizer).get_added_tokens_decoder()
    return {token.content: i for i, token in sorted(added.items())}


def whole_characters(text: str) -> str:
    """`text` with "?" for each half of a surrogate pair: JSON can carry such a thing, but it is no text."""
    return text.encode("utf-8", "replace").decode()


class _Encoder:
    """Encodes with `backend`, and puts nothing around a text."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._cached = lru_cache(maxsize=_CACHED_STRINGS)(self._encode)

    def encode(self, text: str) -> tuple[int, ...]:
        return self._cached(text) if len(text) <= _LONG else self._encode(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        text = whole_characters(text)
        if len(text) <= _LONG:
            return tuple(self._backend.encode(text, add_special_tokens=False).ids)
        # in the same way; but `encode` holds all threads up, and notes where each token stands
        return tuple(self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)


class TrustedEncoder(_Encoder):
    """Encodes text that we wrote, added tokens in use and nothing put around it; decodes what was sampled."""

    def __init__(self, tokenizer: FastTokenizer) -> None:
        super().__init__(backend_of(tokenizer))
        self.longest_token = max(map(len, self._backend.get_vocab(with_added_tokens=True)))
        """Characters that one token stands for at most."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Every token spelled out, control tokens too; no clean-up of spaces."""
        return str(self._backend.decode(token_ids, skip_special_tokens=False))


class OutsideEncoder(_Encoder):
    """Encodes untrusted text: `encode(text)` never holds the id of an added or special token, whatever the text spells.
    Added tokens of nothing but white space (Gemma's) are plain text.

    Raises ConfigError at construction for a tokenizer for which that cannot be: one whose added tokens are also plain
    vocabulary, or that writes an added token for letters it does not know.
    """

    def __init__(
        self, tokenizer: FastTokenizer, *, control: Collection[str] | None = None, begins: bool = False
    ) -> None:
        """`control`: the added tokens that mean something to the renderer besides the special ones; others may be plain
        vocabulary as well, such as Gemma's HTML tags. None = all mean something. `begins`: as in backend_of."""
        original = backend_of(tokenizer, begins=begins)
        spec = json.loads(original.to_str())
        spec["added_tokens"] = []
        spec["post_processor"] = None  # it may name the tokens that were just removed
        super().__init__(Tokenizer.from_str(json.dumps(spec)))
        added = original.get_added_tokens_decoder()
        special = {i for i, token in added.items() if token.special} | set(tokenizer.all_special_ids)
        plain = {i for i, token in added.items() if i not in special and self._is_plain(i, token.content, control)}
        self.protected = frozenset(added) - plain | special
        self._test([token.content for i, token in added.items() if i in self.protected])

    def _is_plain(self, i: int, content: str, control: Collection[str] | None) -> bool:
        """Whether an added token is no more than a word of the vocabulary that is found first."""
        if not content.replace("\u2581", " ").strip():
            return True
        return control is not None and content not in control and i in self._backend.encode(content).ids

    def _encode(self, text: str) -> tuple[int, ...]:
        ids = super()._encode(text)
        if not self.protected.isdisjoint(ids):
            raise DataError(f"untrusted text {text[:80]!r} is encoded with a control token; use another tokenizer")
        return ids

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


def encode_pieces(pieces: Sequence[Piece], *, trusted: TrustedEncoder, outside: OutsideEncoder) -> tuple[int, ...]:
    """Each piece is encoded on its own, so that no token can span the border of trust."""
    return tuple(chain.from_iterable((trusted if piece.trusted else outside).encode(piece.text) for piece in pieces))


def framed(before: str, pieces: Sequence[Piece], after: str) -> tuple[Piece, ...]:
    """The pieces, one at least, between texts of ours. What of them is ours at either end is encoded together with
    these, as if it had been written so."""
    *rest, last = pieces
    framing = [*rest, Piece(last.text + after, True)] if last.trusted else [*rest, last, Piece(after, True)]
    first, *rest = framing
    return (Piece(before + first.text, True), *rest) if first.trusted else (Piece(before, True), *framing)
