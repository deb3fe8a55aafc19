"""POST /v1/embeddings against a server on this machine, written here after the published protocol."""

from __future__ import annotations

import json
import math
from asyncio import StreamWriter, to_thread
from typing import Any

import numpy as np
import pytest

from agentgrpo.config.build import build_node
from agentgrpo.core.errors import ConfigError, RetrieverError
from agentgrpo.retrieval.openai_embedder import OpenAIEmbedder, vectors_of
from tests.retrieval.server import Server, response, say

KEYS = {"model": "m", "api_key_env": None, "backoff_s": 0.01, "timeout_s": 5.0}


async def lengths(request: Any, writer: StreamWriter) -> None:
    """A text's vector is its length and its number of spaces; the rows come in the reverse order."""
    data = [{"index": i, "embedding": [len(t), t.count(" ")]} for i, t in enumerate(request["input"])]
    writer.write(response(json.dumps({"object": "list", "data": data[::-1], "model": request["model"]})))


async def test_texts_go_out_in_batches_and_come_back_in_order_and_of_length_one() -> None:
    async with Server(lengths) as server:
        embedder = OpenAIEmbedder(url=server.url, batch_size=2, max_concurrent=1, passage_prefix="p: ", **KEYS)
        vectors = await to_thread(embedder.embed, ["a", "b c", "dd"])
    assert server.requests == [
        {"model": "m", "input": ["p: a", "p: b c"], "encoding_format": "float"},
        {"model": "m", "input": ["p: dd"], "encoding_format": "float"},
    ]
    raw = np.array([[4, 1], [6, 2], [5, 1]], np.float32)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, raw / np.linalg.norm(raw, axis=1, keepdims=True), rtol=1e-6)


async def test_queries_have_a_prefix_of_their_own_and_the_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "s3cr3t")
    async with Server(lengths) as server:
        node = {
            "name": "openai",
            "url": server.url,
            "query_prefix": "q: ",
            "dimensions": 2,
            **KEYS,
            "api_key_env": "MY_KEY",
        }
        embedder = build_node("embedder", node)
        await to_thread(embedder.embed_queries, ["a"])
        assert embedder.dim == 2
    assert server.requests == [{"model": "m", "input": ["q: a"], "encoding_format": "float", "dimensions": 2}]
    assert "authorization: bearer s3cr3t" in server.heads[0]
    assert embedder.identity == "openai m dimensions=2 prefixes 'q: ' ''"


async def test_a_refusal_passes_and_the_number_of_dimensions_is_asked_for() -> None:
    async with Server(say({}, "503 Busy"), lengths) as server:
        embedder = OpenAIEmbedder(url=server.url, **KEYS)
        assert await to_thread(lambda: embedder.dim) == 2
    assert len(server.requests) == 2


async def test_what_fails_is_an_error_of_its_kind() -> None:
    async with Server(say({"error": "no such model"}, "404 Not Found")) as server:
        with pytest.raises(RetrieverError, match="no such model") as e:
            await to_thread(OpenAIEmbedder(url=server.url, **KEYS).embed, ["a"])
    assert e.value.kind == "http_4xx"


@pytest.mark.parametrize(
    "reply",
    [
        {},
        [],
        {"data": []},
        {"data": [{"index": 1, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": [1.0, "2"]}]},
        {"data": [{"index": 0, "embedding": [1.0, True]}]},
        {"data": [{"index": 0, "embedding": [1.0, math.nan]}]},
        {"data": [{"index": 0, "embedding": [1.0, 10**400]}]},
        {"data": [{"index": 0, "embedding": "AAAA"}]},
        {"data": [{"index": 0}]},
    ],
)
def test_malformed_replies_are_garbage(reply: Any) -> None:
    with pytest.raises(RetrieverError, match="malformed embeddings") as e:
        vectors_of(reply, 1, 2)
    assert e.value.kind == "garbage"


def test_rows_have_length_one_or_none() -> None:
    rows = [{"index": 0, "embedding": [3, 4.0]}, {"index": 1, "embedding": [0, 0]}]
    np.testing.assert_allclose(vectors_of({"data": rows}, 2, None), [[0.6, 0.8], [0, 0]], rtol=1e-6)


def test_keys_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY is not set"):
        OpenAIEmbedder(url="http://localhost/v1/embeddings", model="m")
    with pytest.raises(ConfigError, match="batch_size=0, dimensions=None; 1 or more is allowed"):
        OpenAIEmbedder(url="http://localhost/v1/embeddings", batch_size=0, **KEYS)
