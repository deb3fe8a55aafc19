"""`search: {name: ...}`: what a configuration names."""

from __future__ import annotations

from agentgrpo.memory.schema import CORE, SCHEMAS
from agentgrpo.memory.search.bm25 import Bm25
from agentgrpo.memory.search.cosine import Cosine, Hybrid
from agentgrpo.memory.search.layers import LayeredSearch
from agentgrpo.retrievers.embedder import Embedder, HashingEmbedder

DESCRIPTIONS = {kind: meaning for s in SCHEMAS.values() for kind, meaning in s.kinds.items()} | {
    CORE: " ".join(s.core for s in SCHEMAS.values())
}
"""Of the kinds of all schemas."""


def bm25(
    *,
    k1: float = 1.5,
    b: float = 0.75,
    top_kinds: int = 3,
    top_entries: int = 5,
) -> LayeredSearch:
    """By words. Arguments of all three: see bm25.Bm25 and layers.LayeredSearch."""
    return LayeredSearch(Bm25(k1=k1, b=b), top_kinds=top_kinds, top_entries=top_entries, descriptions=DESCRIPTIONS)


def hybrid(
    *,
    weight: float = 0.5,
    k1: float = 1.5,
    b: float = 0.75,
    top_kinds: int = 3,
    top_entries: int = 5,
    embedder: Embedder | None = None,
) -> LayeredSearch:
    """By words and by meaning. weight: the cosine's share. embedder: None = the hashing one."""
    scorer = Hybrid(Bm25(k1=k1, b=b), Cosine(embedder or HashingEmbedder()), weight=weight)
    return LayeredSearch(scorer, top_kinds=top_kinds, top_entries=top_entries, descriptions=DESCRIPTIONS)


def embedding(
    *,
    top_kinds: int = 3,
    top_entries: int = 5,
    embedder: Embedder | None = None,
) -> LayeredSearch:
    """By meaning. embedder: None = the hashing one, for which chance alone brings unlike texts near 0 from either
    side."""
    scorer = Cosine(embedder or HashingEmbedder())
    return LayeredSearch(scorer, top_kinds=top_kinds, top_entries=top_entries, descriptions=DESCRIPTIONS)
