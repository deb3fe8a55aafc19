"""The keys and values of one episode: a tensor of its own, as long as the episode needs, or a part of a larger one.

Of its own: memory follows each episode's own length, goes back the moment the episode is released, and is read in
place. A part of a larger one: where a step reads many of them at fixed addresses; see rows.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

BUCKET = 64


def bucketed(tokens: int) -> int:
    """Rounded up to a multiple of 64, and beyond 512 tokens of an eighth of the next power of two: at most a quarter
    more than 256 tokens or more need, and few distinct lengths."""
    step = max(BUCKET, 1 << max(0, (tokens - 1).bit_length() - 3))
    return -(-tokens // step) * step


class CacheShape(NamedTuple):
    """What all caches of a model have in common."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    in_place: bool
    """Queries that attend by themselves read their own cache and no token more, one call each: best on a CPU. Else many
    are served by one call, and read and mask what lies beyond their own length."""

    @classmethod
    def of(cls, model: PreTrainedModel) -> CacheShape:
        config = model.config.get_text_config()
        num_heads = int(config.num_attention_heads)
        return cls(
            layers=int(config.num_hidden_layers),
            kv_heads=int(getattr(config, "num_key_value_heads", None) or num_heads),
            head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // num_heads),
            dtype=model.dtype,
            device=model.device,
            in_place=model.device.type == "cpu",
        )

    @property
    def token_bytes(self) -> int:
        """Of the keys and values of a token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize

    def room(self, tokens: int) -> Tensor:
        """New memory for the keys and values of so many tokens, [layers, 2, kv heads, tokens, head dim]."""
        new = torch.empty if self.in_place else torch.zeros  # 0 * nan is nan, masked or not
        return new((self.layers, 2, self.kv_heads, tokens, self.head_dim), dtype=self.dtype, device=self.device)


class KVCache:
    """kv [layers, 2, kv heads, capacity, head dim]: keys (0) and values (1); finite where nothing was written yet, if
    that may be read. keys_t is kv's keys as [layers, kv heads, head dim, capacity], values its values: views. room:
    what kv is the beginning of."""

    __slots__ = ("__weakref__", "capacity", "keys_t", "kv", "room", "values")

    room: Tensor
    kv: Tensor
    keys_t: Tensor
    values: Tensor

    def __init__(self) -> None:
        self.capacity = 0

    def reserve(self, shape: CacheShape, tokens: int) -> None:
        """Make room for that many tokens; keeps what is there."""
        if tokens <= self.capacity:
            return
        if self.capacity == 0:
            self.room = shape.room(tokens)
        elif tokens > self.room.shape[3]:
            room = shape.room(tokens)
            room[:, :, :, : self.capacity] = self.kv
            self.room = room
        self._open(tokens)

    def move(self, room: Tensor, tokens: int) -> None:
        """Be in `room` [layers, 2, kv heads, at least capacity, head dim] from now on. The first `tokens` come along;
        what follows them is zero."""
        room[:, :, :, :tokens] = self.kv[:, :, :, :tokens]
        room[:, :, :, tokens:] = 0
        self.room = room
        self._open(self.capacity)

    def copy_prefix(self, source: KVCache, tokens: int) -> None:
        self.kv[:, :, :, :tokens] = source.kv[:, :, :, :tokens]

    def _open(self, tokens: int) -> None:
        self.capacity, self.kv = tokens, self.room[:, :, :, :tokens]
        self.keys_t, self.values = self.kv[:, 0].mT, self.kv[:, 1]


# --- What one episode keeps between its turns, and in which pieces its tokens are computed.
#
# The pieces depend on the episode alone, never on who else is there, when, or on how often the episode was evicted:
#
#     first turn    prompt[:-1] as a span, then its last token by itself
#     an opening    (`SamplingParams.opening`) of MIN_SPAN tokens or more is a span, and what follows it another: a
# fresh
#                   prompt that opens with the same tokens keeps the first, and is cut like a first turn
#     later turns   the last sampled token and all that was injected after it as a span; alone, by itself
#     in between    every sampled token by itself
#     a span        is cut into pieces of `chunk` tokens from its start; of a piece shorter than MIN_SPAN every token is
#                   computed by itself
#
# Whatever is computed by itself has the same bits in any company, so that after an eviction the tokens that once were
# sampled one step after the other are computed again side by side.

MIN_SPAN = 8


class PromptKey(NamedTuple):
    """What contexts share from their start: the same tokens, cut into the same pieces."""

    group: tuple[str, str] | None
    """None = with every other group."""
    tokens: tuple[int, ...]
    opening: int
    """How many of the tokens are a span by themselves."""


class ContextPiece(NamedTuple):
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

    def pieces(self) -> Iterator[ContextPiece]:
        """What is left to compute of `tokens`, in order; the last token alone if it is computed by itself."""
        at, end = self.cached, len(self.tokens)
        if at == end - 1:  # decoding
            yield ContextPiece(at, end, single=True)
            return
        for start, stop in [*self.spans, (end, end)]:
            while at < min(start, end - 1):
                piece = ContextPiece(at, min(at + self.chunk, start, end - 1), single=True)
                yield piece
                at = piece.stop
            while at < stop:
                piece = ContextPiece(at, min(at + self.chunk, stop), single=min(self.chunk, stop - at) < MIN_SPAN)
                yield piece
                at = piece.stop
        if at < end:
            yield ContextPiece(at, end, single=True)


# --- Which contexts have keys and values, and how many tokens of them there may be. Bookkeeping only, no tensors.
#
# A context that is grown exists twice for a moment; that moment is not counted.

OF_MEMORY = 3
"""Keys and values take one part of so many, of what the weights leave; the optimizer and the update take the others."""


def budget_within(device_bytes: int, *, weight_bytes: int, token_bytes: int, longest: int) -> int:
    """Tokens that all contexts have room for where no setting says it: a matter of the device and the model alone, so
    that two runs are the same. At least one of the `longest` has it."""
    return max(bucketed(longest), (device_bytes - weight_bytes) // OF_MEMORY // token_bytes)


def bytes_of(device: torch.device) -> int:
    """The memory of a device, or of this machine."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class CacheBudget:
    def __init__(self, *, slots: int, budget: int | None) -> None:
        """slots: contexts at once. budget: tokens that all of them together may have room for, null = any number."""
        self._slots, self._budget = slots, budget
        self.contexts: set[Context] = set()
        self.tokens = 0
        """For which there is room now."""

    @property
    def full(self) -> bool:
        return len(self.contexts) >= self._slots

    def missing(self, context: Context, tokens: int, *, spare: int = 0) -> int:
        """How many tokens others have to give up before `context` can have room for `tokens`, and `spare` are left."""
        if self._budget is None:
            return 0
        return self.tokens + max(0, bucketed(tokens) - context.capacity) + spare - self._budget

    def give(self, context: Context, tokens: int) -> None:
        """Room for that many tokens, and a slot."""
        if context.cache is None:
            context.cache = KVCache()
            self.contexts.add(context)
        if tokens > context.capacity:
            self.tokens += bucketed(tokens) - context.capacity
            context.capacity = bucketed(tokens)

    def take(self, context: Context) -> None:
        """All it has. What is still to be copied from it is not lost: the copy holds the cache."""
        self.contexts.discard(context)
        self.tokens -= context.capacity
        context.capacity, context.cached, context.cache = 0, 0, None


def growth(context: Context) -> int:
    """By how many tokens the context will grow when it outgrows its room."""
    return bucketed(context.capacity + 1) - context.capacity
