"""The keys and values of one episode: a separate tensor, as long as the episode needs, or a part of a larger one.

A separate tensor follows the length of its episode, is freed as soon as the episode is released, and is read in place.
A part of a larger tensor is used if a step reads many caches at fixed addresses; see recorded.py.
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
    """Round up to a multiple of 64 and, beyond 512 tokens, of an eighth of the next power of two. From 256 tokens on
    this adds at most a quarter, and there are few distinct lengths."""
    step = max(BUCKET, 1 << max(0, (tokens - 1).bit_length() - 3))
    return -(-tokens // step) * step


class CacheShape(NamedTuple):
    """Properties shared by all caches of a model."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    in_place: bool
    """Queries that attend separately read exactly their own cache, with one call each: best on a CPU. Otherwise one
    call serves many queries, which also read the keys beyond their own length and mask them."""

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
        """Size of the keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize

    def room(self, tokens: int) -> Tensor:
        """Allocate memory for the keys and values of `tokens` tokens, [layers, 2, kv heads, tokens, head dim]."""
        new = torch.empty if self.in_place else torch.zeros  # 0 * nan is nan, even if masked
        return new((self.layers, 2, self.kv_heads, tokens, self.head_dim), dtype=self.dtype, device=self.device)


class KVCache:
    """kv [layers, 2, kv heads, capacity, head dim]: keys (0) and values (1); unwritten parts are finite if they may be
    read. keys_t, a view of the keys as [layers, kv heads, head dim, capacity]; values, a view of the values. room: the
    memory that kv is the beginning of."""

    __slots__ = ("__weakref__", "capacity", "keys_t", "kv", "room", "values")

    room: Tensor
    kv: Tensor
    keys_t: Tensor
    values: Tensor

    def __init__(self) -> None:
        self.capacity = 0

    def reserve(self, shape: CacheShape, tokens: int) -> None:
        """Grow to at least `tokens` tokens, keeping the contents."""
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
        """Move to `room` [layers, 2, kv heads, at least capacity, head dim]. The first `tokens` tokens are copied; the
        rest is zeroed."""
        room[:, :, :, :tokens] = self.kv[:, :, :, :tokens]
        room[:, :, :, tokens:] = 0
        self.room = room
        self._open(self.capacity)

    def copy_prefix(self, source: KVCache, tokens: int) -> None:
        self.kv[:, :, :, :tokens] = source.kv[:, :, :, :tokens]

    def _open(self, tokens: int) -> None:
        self.capacity, self.kv = tokens, self.room[:, :, :, :tokens]
        self.keys_t, self.values = self.kv[:, 0].mT, self.kv[:, 1]


# --- The state of an episode between its turns, and the pieces in which its tokens are computed.
#
# The pieces depend on the episode alone, never on other episodes, on timing or on the number of evictions:
#
#     first turn    prompt[:-1] as a span, then its last token separately
#     an opening    (`SamplingParams.opening`) of at least MIN_SPAN tokens is one span, the rest of the prompt another:
#                   a fresh prompt with the same opening keeps the first span, and is cut like a first turn
#     later turns   the last sampled token and all tokens injected after it as a span; without any, it is separate
#     in between    every sampled token separately
#     a span        is cut into pieces of `chunk` tokens from its start; the tokens of a piece shorter than MIN_SPAN
#                   are computed separately
#
# A token computed separately has the same bits in any batch. So after an eviction, tokens that were sampled one step
# after another can be recomputed together.

MIN_SPAN = 8


class PromptKey(NamedTuple):
    """A prefix that contexts share: the same tokens, cut into the same pieces."""

    group: tuple[str, str] | None
    """The group that shares the prefix; None = all groups share it."""
    tokens: tuple[int, ...]
    opening: int
    """Number of leading tokens that form a span of their own."""


class ContextPiece(NamedTuple):
    """tokens[start:stop], computed separately (`single`) or attending together."""

    start: int
    stop: int
    single: bool


@dataclass(slots=True, eq=False)
class Context:
    """The first `cached` of `tokens` are in `cache`. The first `settled` have been computed, though perhaps evicted
    since: their division into pieces must not change any more."""

    age: int
    """Number of the episode in order of arrival: the oldest has priority."""
    group: tuple[str, str]
    chunk: int
    tokens: list[int] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    """(start, stop), ascending; tokens outside the spans are computed separately."""
    settled: int = 0
    cached: int = 0
    cache: KVCache | None = None
    """The keys and values; None = the context has no slot."""
    capacity: int = 0
    """Number of tokens that the cache has room for, now or in the next step."""
    idle_since: int = 0
    """The step after which the context was last used."""
    shared: tuple[PromptKey, ...] = ()
    """Prefixes that it shares with other episodes, or will share: its opening, then its prompt."""

    @property
    def held(self) -> KVCache:
        assert self.cache is not None, "a context without a slot was scheduled"
        return self.cache

    def follow(self, tokens: list[int], opening: int = 0) -> None:
        """Continue with `tokens`: keep the prefix that is unchanged; the last token is always recomputed."""
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
        """Add tokens[:stop] as a shared prefix; its new span starts at the end of the last one."""
        start = self.spans[-1][1] if self.spans else 0
        if stop > start:
            self.spans.append((start, stop))
            self.shared += (PromptKey(group, tuple(self.tokens[:stop]), opening),)

    def rewind(self, kept: int) -> None:
        """Forget all but the first `kept` tokens; a piece that is computed together is kept completely or not at
        all."""
        for start, stop in self.spans:
            if start < kept < stop:
                piece = kept - (kept - start) % self.chunk
                kept = piece if min(piece + self.chunk, stop) - piece >= MIN_SPAN else kept
        self.spans = [(start, min(stop, kept)) for start, stop in self.spans if start < kept]
        self.settled, self.cached = kept, min(self.cached, kept)
        self.shared = tuple(key for key in self.shared if len(key.tokens) <= kept)

    def forget_pieces(self) -> None:
        """Recompute everything after the shared prefix as one span: faster, but with other bits."""
        end = max(self.settled, self.spans[-1][1] if self.spans else 0)
        shared = max((len(key.tokens) for key in self.shared), default=0)
        self.spans = [s for s in self.spans if s[1] <= shared]
        if end > shared:
            self.spans.append((shared, end))

    def pieces(self) -> Iterator[ContextPiece]:
        """Yield the pieces of `tokens` left to compute, in order; the last token is separate if it is outside the
        spans."""
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


# --- The KV budget: which contexts have keys and values, and for how many tokens. Bookkeeping only, no tensors.
#
# While a context grows, it briefly exists twice; the second copy is not counted.

OF_MEMORY = 3
"""Keys and values get one part in this many of the memory that the weights leave free; optimizer and update take the
rest."""


def budget_within(device_bytes: int, *, weight_bytes: int, token_bytes: int, longest: int) -> int:
    """Return the default budget: the tokens that all contexts together have room for. It depends on device and model
    alone, so that two runs agree, and is enough for one context of the `longest` length."""
    return max(bucketed(longest), (device_bytes - weight_bytes) // OF_MEMORY // token_bytes)


def bytes_of(device: torch.device) -> int:
    """Return the memory of a device, or of this machine for a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class CacheBudget:
    def __init__(self, *, slots: int, budget: int | None) -> None:
        """slots: maximum number of contexts. budget: maximum number of tokens of all contexts together, null =
        unlimited."""
        self._slots, self._budget = slots, budget
        self.contexts: set[Context] = set()
        self.tokens = 0
        """Current capacity of all contexts together, in tokens."""

    @property
    def full(self) -> bool:
        return len(self.contexts) >= self._slots

    def missing(self, context: Context, tokens: int, *, spare: int = 0) -> int:
        """Return how many tokens other contexts must give up so that `context` has room for `tokens`, and `spare` are
        left."""
        if self._budget is None:
            return 0
        return self.tokens + max(0, bucketed(tokens) - context.capacity) + spare - self._budget

    def give(self, context: Context, tokens: int) -> None:
        """Give the context a slot, and room for that many tokens."""
        if context.cache is None:
            context.cache = KVCache()
            self.contexts.add(context)
        if tokens > context.capacity:
            self.tokens += bucketed(tokens) - context.capacity
            context.capacity = bucketed(tokens)

    def take(self, context: Context) -> None:
        """Take everything from the context. A pending copy from it is safe, because the copy holds the cache."""
        self.contexts.discard(context)
        self.tokens -= context.capacity
        context.capacity, context.cached, context.cache = 0, 0, None


def growth(context: Context) -> int:
    """Return by how many tokens the context will grow when it outgrows its room."""
    return bucketed(context.capacity + 1) - context.capacity
