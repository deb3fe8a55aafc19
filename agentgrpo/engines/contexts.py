"""What one episode keeps between its turns, and in which pieces its tokens are computed.

The pieces depend on the episode alone, never on who else is there, when, or on how often the episode was evicted:

    first turn    prompt[:-1] as a span, then its last token by itself
    an opening    (`SamplingParams.opening`) of MIN_SPAN tokens or more is a span, and what follows it another: a fresh
                  prompt that opens with the same tokens keeps the first, and is cut like a first turn
    later turns   the last sampled token and all that was injected after it as a span; alone, by itself
    in between    every sampled token by itself
    a span        is cut into pieces of `chunk` tokens from its start; of a piece shorter than MIN_SPAN every token is
                  computed by itself

Whatever is computed by itself has the same bits in any company, so that after an eviction the tokens that once were
sampled one step after the other are computed again side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from agentgrpo.engines.cache import KVCache

MIN_SPAN = 8


class PromptKey(NamedTuple):
    """What contexts share from their start: the same tokens, cut into the same pieces."""

    group: tuple[str, str] | None
    """None = with every other group."""
    tokens: tuple[int, ...]
    opening: int
    """How many of the tokens are a span by themselves."""


class Piece(NamedTuple):
    """tokens[start:stop], every one by itself (`single`) or attending together."""

    start: int
    stop: int
    single: bool


@dataclass(slots=True, eq=False)
class Context:
    """The first `cached` of `tokens` are in `cache`. The first `settled` have been computed, though they may have been
    evicted since: how they are cut into pieces must not change any more."""

    age: int
    """Episodes are numbered as they come: the oldest goes first."""
    group: tuple[str, str]
    chunk: int
    tokens: list[int] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    """(start, stop), ascending; tokens outside of them are computed by themselves."""
    settled: int = 0
    cached: int = 0
    cache: KVCache | None = None
    """None = it has no slot."""
    capacity: int = 0
    """Tokens that the cache has room for, or will have in the next step."""
    idle_since: int = 0
    """The step after which it was last used."""
    shared: tuple[PromptKey, ...] = ()
    """What it has in common with other episodes, or will have: its opening, then its prompt."""

    @property
    def held(self) -> KVCache:
        assert self.cache is not None, "a context without a slot was scheduled"
        return self.cache

    def follow(self, tokens: list[int], opening: int = 0) -> None:
        """Go on with `tokens`: keep what they repeat; the last one is always computed anew."""
        kept = min(self.settled, len(tokens) - 1)
        if self.tokens[:kept] != tokens[:kept]:
            kept = next(i for i, (a, b) in enumerate(zip(self.tokens, tokens, strict=False)) if a != b)
        self.rewind(kept)
        self.tokens = tokens
        start, last = self.settled, len(tokens) - 1
        opening = min(opening, last) if opening >= MIN_SPAN else 0
        if start == 0 < opening:
            self._share(None, opening, opening)
        if start in (0, opening) and self.shared == self._opened(opening):
            self._share(self.group, last, opening)
        elif len(tokens) - start > 1:
            self.spans.append((start, len(tokens)))

    def _opened(self, opening: int) -> tuple[PromptKey, ...]:
        return (PromptKey(None, tuple(self.tokens[:opening]), opening),) if opening else ()

    def _share(self, group: tuple[str, str] | None, stop: int, opening: int) -> None:
        """tokens[:stop], as a span from where the last one ends."""
        start = self.spans[-1][1] if self.spans else 0
        if stop > start:
            self.spans.append((start, stop))
            self.shared += (PromptKey(group, tuple(self.tokens[:stop]), opening),)

    def rewind(self, kept: int) -> None:
        """Forget all but the first `kept` tokens; of a piece that is computed together, nothing is kept if not all."""
        for start, stop in self.spans:
            if start < kept < stop:
                piece = kept - (kept - start) % self.chunk
                kept = piece if min(piece + self.chunk, stop) - piece >= MIN_SPAN else kept
        self.spans = [(start, min(stop, kept)) for start, stop in self.spans if start < kept]
        self.settled, self.cached = kept, min(self.cached, kept)
        self.shared = tuple(key for key in self.shared if len(key.tokens) <= kept)

    def forget_pieces(self) -> None:
        """Compute in one span all that follows what is shared: faster to do again, but with other bits."""
        end = max(self.settled, self.spans[-1][1] if self.spans else 0)
        shared = max((len(key.tokens) for key in self.shared), default=0)
        self.spans = [s for s in self.spans if s[1] <= shared]
        if end > shared:
            self.spans.append((shared, end))

    def pieces(self) -> Iterator[Piece]:
        """What is left to compute of `tokens`, in order; the last token alone if it is computed by itself."""
        at, end = self.cached, len(self.tokens)
        if at == end - 1:  # decoding
            yield Piece(at, end, single=True)
            return
        for start, stop in [*self.spans, (end, end)]:
            while at < min(start, end - 1):
                piece = Piece(at, min(at + self.chunk, start, end - 1), single=True)
                yield piece
                at = piece.stop
            while at < stop:
                piece = Piece(at, min(at + self.chunk, stop), single=min(self.chunk, stop - at) < MIN_SPAN)
                yield piece
                at = piece.stop
        if at < end:
            yield Piece(at, end, single=True)
