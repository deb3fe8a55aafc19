"""Retrievers that need no server: FAISS and Tantivy in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentgrpo.core.errors import ConfigError, did_you_mean
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.base import Backend, Retriever
from agentgrpo.retrieval.batching import Batched
from agentgrpo.retrieval.bm25 import Bm25Backend
from agentgrpo.retrieval.corpus import searchable_text
from agentgrpo.retrieval.dense import DenseBackend
from agentgrpo.retrieval.embedder import HashingEmbedder
from agentgrpo.retrieval.fused import FusedBackend

_MODES = ("split", "fused")


def embedded(
    *,
    corpora: Mapping[str, Sequence[Passage]],
    mode: str = "split",
    dim: int = 512,
    stemmer: str | None = "english",
    cache_size: int = 4096,
    web: Retriever | None = None,
) -> dict[str, Retriever]:
    """`retriever: embedded`. "vdb" searches corpora["vdb"]: by meaning (split), or by meaning and by words, fused by
    reciprocal rank (fused). "web" is `web`, or else a search by words in corpora["web"] if that exists, in both modes.

    dim: dimension of the hashing embedder. stemmer: language of the words, null = no stemming. cache_size: rows cached
    by each retriever. Raises ConfigError.
    """
    if mode not in _MODES:
        raise ConfigError(f"mode={mode!r}; allowed are {' and '.join(_MODES)}.{did_you_mean(mode, _MODES)}")
    if "vdb" not in corpora or not set(corpora) <= {"vdb", "web"}:
        raise ConfigError(f"corpora {sorted(corpora)}; allowed are vdb (required) and web")
    passages = corpora["vdb"]
    embedder = HashingEmbedder(dim=dim, texts=map(searchable_text, passages))
    backends: dict[str, Backend] = {"vdb": DenseBackend(passages, embedder=embedder)}
    if mode == "fused":
        backends["vdb"] = FusedBackend([backends["vdb"], Bm25Backend(passages, stemmer=stemmer)])
    if "web" in corpora and web is None:
        backends["web"] = Bm25Backend(corpora["web"], stemmer=stemmer)
    found: dict[str, Retriever] = {name: Batched(b, cache_size=cache_size) for name, b in backends.items()}
    return found if web is None else {**found, "web": web}
