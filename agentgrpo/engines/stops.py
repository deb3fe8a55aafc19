"""When a sampled turn ends: stop tokens, and stop strings without decoding the text again for every token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

PARTIAL = "\ufffd"
"""What a decoder writes for bytes that are not yet a whole character."""


class StopRule:
    """Tells after each token whether the turn is over; the token that completes a stop string belongs to the turn."""

    __slots__ = ("_decode", "_final", "_strings", "_suspects", "_tail")

    def __init__(
        self,
        *,
        final: frozenset[int],
        suspects: frozenset[int],
        strings: Sequence[str],
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        """final: tokens that end a turn by themselves. suspects: tokens that may complete one of `strings` which began
        in earlier tokens; only after these is text decoded, and only as many tokens as a stop string can have bytes."""
        self._final, self._suspects, self._strings, self._decode = final, suspects, strings, decode
        self._tail = max((len(s.encode()) for s in strings), default=0) + 4

    def ends(self, tokens: Sequence[int], first: int) -> bool:
        """`tokens[first:]` are the turn's so far, none of which but the last can have ended it."""
        token = tokens[-1]
        if token in self._final:
            return True
        if token not in self._suspects:
            return False
        text = self._decode(tokens[max(first, len(tokens) - self._tail) :])
        return any(s in text for s in self._strings)


class StopRules:
    """Makes the StopRule of a (stop strings, stop tokens) pair, once each. `tokenizer` is a transformers tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._made: dict[tuple[tuple[str, ...], tuple[int, ...]], StopRule] = {}

    def rule(self, strings: tuple[str, ...], token_ids: tuple[int, ...]) -> StopRule:
        made = self._made.get((strings, token_ids))
        if made is None:
            made = self._made[strings, token_ids] = self._make(tuple(s for s in strings if s), token_ids)
        return made

    def _make(self, strings: tuple[str, ...], token_ids: tuple[int, ...]) -> StopRule:
        final, suspects = set(token_ids), set[int]()
        # A token completes a string begun earlier only if its text starts with a proper suffix of that string; of a
        # token that is part of a character, or that shows only in company, nothing is known.
        suffixes = tuple(s[i:] for s in strings for i in range(1, len(s)))
        for token, text in enumerate(self._texts if strings else ()):
            if any(s in text for s in strings):
                final.add(token)
            elif not text or PARTIAL in text or text.startswith(suffixes):
                suspects.add(token)
        return StopRule(final=frozenset(final), suspects=frozenset(suspects), strings=strings, decode=self._decode)

    @cached_property
    def _texts(self) -> list[str]:
        return [self._decode([i]) for i in range(len(self._tokenizer))]

    def _decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text
