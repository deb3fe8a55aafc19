"""How a reader finds its way in documents: first the kinds that a query is about, then their best entries."""

from agentgrpo.memory.search.layers import LayeredSearch, Scorer
from agentgrpo.memory.search.searches import bm25, embedding, hybrid

__all__ = ["LayeredSearch", "Scorer", "bm25", "embedding", "hybrid"]
