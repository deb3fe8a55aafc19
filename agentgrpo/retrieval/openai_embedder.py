"""`embedder: openai`: a server that speaks POST /v1/embeddings.

{"model", "input": [text, ...], "dimensions"?}  ->  {"data": [{"index": i, "embedding": [number, ...]}, ...]}
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np

from agentgrpo.core.concurrency import Limiter
from agentgrpo.core.errors import ConfigError, RetrieverError, line_of
from agentgrpo.retrieval.embedder import Vectors
from agentgrpo.services.client import JsonClient
from agentgrpo.services.secret import Secret


class OpenAIEmbedder:
    """The server's vectors, scaled to length 1. Raises RetrieverError with the kinds of JsonClient."""

    def __init__(
        self,
        *,
        url: str,
        model: str,
        api_key_env: str | None = "OPENAI_API_KEY",
        dimensions: int | None = None,
        query_prefix: str = "",
        passage_prefix: str = "",
        batch_size: int = 128,
        max_concurrent: int = 4,
        timeout_s: float = 60.0,
        retries: int = 5,
        backoff_s: float = 0.5,
        max_response_bytes: int = 32 * 2**20,
        trust_env: bool = True,
    ) -> None:
        """batch_size: texts in a request. timeout_s: for a request with all its attempts. Raises ConfigError."""
        if batch_size < 1 or (dimensions is not None and dimensions < 1):
            raise ConfigError(
                f"embedder: batch_size={batch_size}, dimensions={dimensions}; 1 or more is allowed, and null "
                "for the model's own dimensions"
            )
        self.identity = f"openai {model} dimensions={dimensions} prefixes {query_prefix!r} {passage_prefix!r}"
        self._model, self._dimensions = model, dimensions
        self._prefixes = query_prefix, passage_prefix
        self._batch_size, self._limiter = batch_size, Limiter(max_concurrent)
        self._client = JsonClient(
            url=url,
            error=RetrieverError,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            max_response_bytes=max_response_bytes,
            trust_env=trust_env,
            secrets=[] if api_key_env is None else [Secret(api_key_env)],
            setting="embedder.timeout_s",
        )

    @cached_property
    def dim(self) -> int:
        """The configured dimensions, or else the length of a vector from the server."""
        return self._dimensions or int(self.embed(["dimensions"]).shape[1])

    def embed(self, texts: Sequence[str]) -> Vectors:
        return self._embed([self._prefixes[1] + text for text in texts])

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        return self._embed([self._prefixes[0] + text for text in texts])

    def _embed(self, texts: Sequence[str]) -> Vectors:
        # In a separate thread and event loop, because the caller may be in a loop already.
        with ThreadPoolExecutor(max_workers=1) as thread:
            found: Vectors = thread.submit(lambda: asyncio.run(self._ask_all(texts))).result()
        return found

    async def _ask_all(self, texts: Sequence[str]) -> Vectors:
        batches = [texts[i : i + self._batch_size] for i in range(0, len(texts), self._batch_size)]
        try:
            async with asyncio.TaskGroup() as tasks:
                asked = [tasks.create_task(self._ask(batch)) for batch in batches]
        except ExceptionGroup as e:
            raise e.exceptions[0] from e
        finally:
            await self._client.close()
        found = [task.result() for task in asked]
        if len(lengths := {vectors.shape[1] for vectors in found}) > 1:
            raise RetrieverError(f"{self._client.shown}: vectors of {sorted(lengths)} numbers", kind="garbage")
        return np.concatenate(found)

    async def _ask(self, texts: Sequence[str]) -> Vectors:
        payload: dict[str, Any] = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        if self._dimensions is not None:
            payload["dimensions"] = self._dimensions
        async with self._limiter:
            return await self._client.post(payload, lambda reply: vectors_of(reply, len(texts), self._dimensions))


def vectors_of(reply: Any, count: int, dim: int | None) -> Vectors:
    """Unit vectors [count, dim], in the order of the indexes. Raises RetrieverError (garbage)."""
    try:
        by_index = {item["index"]: item["embedding"] for item in reply["data"]}
        rows = [by_index[i] for i in range(count)]
        if not all(type(number) in (int, float) and math.isfinite(number) for row in rows for number in row):
            raise ValueError("a value is not a finite number")
        vectors = np.array(rows, np.float32)
        if vectors.ndim != 2 or not vectors.shape[1] or (dim is not None and vectors.shape[1] != dim):
            raise ValueError(f"vectors of shape {list(vectors.shape)}, where [{count}, {dim or 'dim'}] were asked for")
    except (TypeError, KeyError, ValueError, OverflowError) as e:
        raise RetrieverError(f"malformed embeddings: {line_of(e)}", kind="garbage") from e
    lengths = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
