"""Text to tokens under two rules: trusted text may use added tokens, text from outside may not.

`split_special_tokens` is not enough: any document can still spell added tokens that are not flagged special
(`<tool_call>`, `<think>`). Here text from outside is encoded by a clone of the tokenizer without any added tokens. The
text itself is not changed: a control string in a document stays readable.
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
# characters; longer strings are not cached, and are encoded with the interpreter lock released
_LONG = 2**14
# a rare letter, an emoji, a control character, a byte-order mark: a tokenizer without tokens for them writes <unk>
_RARE = "\u00e9 \u0141 \u6f22 \U0001f642 \u0001 \ufeff"


class FastTokenizer(Protocol):
    """The part of a transformers tokenizer that is used here: the Rust one inside, its control ids and its chat
    template."""

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
    """Return a private copy of the Rust tokenizer, without truncation or padding set on it.

    SentencePiece tokenizers add a space before a text that begins the context. Unless `begins`, the copy is for texts
    that continue the context and adds no such space."""
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
    """Return the state of a tokenizer that adds no space before a text."""
    if '"prepend_scheme":"first"' not in state:
        return state  # for most tokenizers; parsing the JSON of a large vocabulary takes a second
    spec = json.loads(state)
    cut = spec["pre_tokenizer"]
    for step in cut.get("pretokenizers", [cut]):
        if step.get("prepend_scheme") == "first":
            step["prepend_scheme"] = "never"
    return json.dumps(spec)


def added_tokens(tokenizer: FastTokenizer) -> dict[str, int]:
    """Return id by text of all added tokens, which do not come from merging bytes or letters: text from outside may not
    spell them."""
    added = _rust(tokenizer).get_added_tokens_decoder()
    return {token.content: i for i, token in sorted(added.items())}


def whole_characters(text: str) -> str:
    """Return `text` with "?" for each unpaired surrogate, which JSON can carry but UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


class _Encoder:
    """Encodes with `backend`, without special tokens around the text."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._cached = lru_cache(maxsize=_CACHED_STRINGS)(self._encode)

    def encode(self, text: str) -> tuple[int, ...]:
        return self._cached(text) if len(text) <= _LONG else self._encode(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        text = whole_characters(text)
        if len(text) <= _LONG:
            return tuple(self._backend.encode(text, add_special_tokens=False).ids)
        # the same ids; but `encode` blocks all threads, and records the place of each token
        return tuple(self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)


class TrustedEncoder(_Encoder):
    """Encodes trusted text, with added tokens and without special tokens around it; decodes sampled tokens."""

    def __init__(self, tokenizer: FastTokenizer) -> None:
        super().__init__(backend_of(tokenizer))
        self.longest_token = max(map(len, self._backend.get_vocab(with_added_tokens=True)))
        """Length of the longest token in characters."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Every token spelled out, control tokens too; no clean-up of spaces."""
        return str(self._backend.decode(token_ids, skip_special_tokens=False))


class OutsideEncoder(_Encoder):
    """Encodes untrusted text: `encode(text)` never holds the id of an added or special token, whatever the text spells.
    Added tokens that are only white space (Gemma's) are plain text.

    Raises ConfigError at construction for a tokenizer that cannot guarantee this: its added tokens are also plain
    vocabulary, or it writes an added token for unknown letters.
    """

    def __init__(
        self, tokenizer: FastTokenizer, *, control: Collection[str] | None = None, begins: bool = False
    ) -> None:
        """control: added tokens, besides the special ones, that have a meaning for the renderer; other added tokens may
        also be plain vocabulary, such as Gemma's HTML tags. None = every added token has a meaning. begins: as in
        backend_of."""
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
        """Return whether an added token is only a plain vocabulary word that is matched first."""
        if not content.replace("\u2581", " ").strip():
            return True
        return control is not None and content not in control and i in self._backend.encode(content).ids

    def _encode(self, text: str) -> tuple[int, ...]:
        ids = super()._encode(text)
        if not self.protected.isdisjoint(ids):
            raise DataError(f"untrusted text {text[:80]!r} is encoded with a control token; use another tokenizer")
        return ids

    def _test(self, control_strings: Sequence[str]) -> None:
        """Try each control string bare, between spaces, between letters and twice; and letters that may have no
        token."""
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
    """Encode each piece separately, so that no token spans trusted and untrusted text."""
    return tuple(chain.from_iterable((trusted if piece.trusted else outside).encode(piece.text) for piece in pieces))


def framed(before: str, pieces: Sequence[Piece], after: str) -> tuple[Piece, ...]:
    """Return one or more pieces between two trusted texts. A trusted piece at either end is joined with the adjacent
    text, so that both are encoded together."""
    *rest, last = pieces
    framing = [*rest, Piece(last.text + after, True)] if last.trusted else [*rest, last, Piece(after, True)]
    first, *rest = framing
    return (Piece(before + first.text, True), *rest) if first.trusted else (Piece(before, True), *framing)
