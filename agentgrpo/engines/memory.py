"""Which contexts have keys and values, and how many tokens of them there may be. Bookkeeping only, no tensors.

A context that is grown exists twice for a moment; that moment is not counted.
"""

from __future__ import annotations

from agentgrpo.engines.cache import KVCache, bucketed
from agentgrpo.engines.contexts import Context


class Memory:
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
