"""A Qdrant collection: connecting, filling and searching.

collection          a point for each passage, numbered by its position, with the passage as its payload
collection-index    one point: the manifest of the index, and the number of stored passages
"""

from __future__ import annotations

import base64
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentgrpo.core.errors import AgentGrpoError, ConfigError, RetrieverError
from agentgrpo.core.secrets import masked
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.corpus import passage_of, well_formed
from agentgrpo.retrieval.embedder import Embedder, Vectors
from agentgrpo.retrieval.index.database import Record, opened_record, packed
from agentgrpo.retrieval.index.manifest import Manifest, Shape
from agentgrpo.retrieval.index.vectors import Candidates
from agentgrpo.retrieval.lazy import extra_missing, one_line
from agentgrpo.services.client import host_of, shown
from agentgrpo.services.secret import Secret

_AT_ONCE = 128
"""Points per request; vectors are sent as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QdrantPlace:
    path: str | None
    url: str | None
    api_key_env: str | None
    timeout_s: float
    collection: str

    def __str__(self) -> str:
        return f"the Qdrant collection {self.collection} at {self.path or shown(self.url or '')}"

    @property
    def about(self) -> str:
        """The collection that stores this one's manifest, because many servers do not support collection
        metadata yet."""
        return f"{self.collection}-index"

    def connect(self) -> Any:
        """Open a client. Raises ConfigError."""
        try:
            from qdrant_client import QdrantClient
        except ImportError as e:
            raise extra_missing(e, what="retriever=qdrant", extra="qdrant") from e
        with self.answering():
            if self.path is not None:
                return QdrantClient(path=self.path, force_disable_check_same_thread=True)
            if self.api_key_env is not None:
                Secret(self.api_key_env).check()
            key = os.environ[self.api_key_env] if self.api_key_env else None
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Api key is used with an insecure connection")  # usual in a LAN
                timeout = max(1, round(self.timeout_s))
                return QdrantClient(url=self.url, api_key=key, timeout=timeout, check_compatibility=False)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Turn failures of the folder or the server into a ConfigError, for use while starting."""
        try:
            yield
        except AgentGrpoError:
            raise
        except Exception as e:
            where = f"retriever.path={self.path}" if self.path else f"retriever.url={shown(self.url or '')}"
            hint = "another process has it open; several need a server" if self.path else "start it, or correct the URL"
            raise ConfigError(f"{where}: Qdrant does not answer ({self.said(e)}); {hint}") from e

    def said(self, error: Exception) -> str:
        """Qdrant's error message, without password and key."""
        # for an unreadable URL the message may quote a piece of the password
        return masked(type(error).__name__ if "@" in (self.url or "") else one_line(error))


def place_of(
    path: str | None, url: str | None, api_key_env: str | None, timeout_s: float, collection: str
) -> QdrantPlace:
    """Validate the settings without opening anything. Raises ConfigError."""
    if (path is None) == (url is None):
        at = None if url is None else shown(url)
        raise ConfigError(
            f"retriever.path={path}, retriever.url={at}; give one of them: a folder, or a server such as "
            "http://localhost:6333"
        )
    if url is not None:
        host_of(url)
    if not timeout_s > 0:
        raise ConfigError(f"retriever.timeout_s={timeout_s}; more than 0 is allowed")
    path = None if path is None else str(Path(path).expanduser())
    return QdrantPlace(path=path, url=url, api_key_env=api_key_env, timeout_s=timeout_s, collection=collection)


class QdrantSink:
    """Numbers points by their position, so that a point sent again replaces itself."""

    kind = "qdrant"

    def __init__(self, place: QdrantPlace, shape: Shape) -> None:
        """Raises ConfigError if Qdrant cannot be reached."""
        self.index = shape.index
        self._place, self._shape = place, shape
        self._client: Any = None
        client = place.connect()
        try:
            with place.answering():
                client.collection_exists(place.collection)
        finally:
            client.close()

    def begin(self, manifest: Manifest) -> int:
        from qdrant_client import models

        place = self._place
        client = self._client = place.connect()
        with place.answering():
            about = _about(client, place)
            if about is None and client.collection_exists(place.collection):
                raise ConfigError(f"{place} was not built by agentgrpo index; give another retriever.collection")
            if about is not None:
                about.require(manifest, where=place, key="retriever.collection")
            else:
                if not client.collection_exists(place.about):
                    one = models.VectorParams(size=1, distance=models.Distance.DOT)
                    client.create_collection(place.about, vectors_config=one)
            if not client.collection_exists(place.collection):
                self._record(manifest, 0)  # first: if killed in between, an empty collection would count as full
                links = self._shape.links if self._shape.index == "hnsw" else 0  # 0 = no graph
                about = None
                client.create_collection(
                    place.collection,
                    vectors_config=models.VectorParams(size=manifest.dim, distance=models.Distance.DOT, on_disk=True),
                    hnsw_config=models.HnswConfigDiff(m=links, ef_construct=max(4, self._shape.build_candidates)),
                    on_disk_payload=True,
                )
        self._manifest = manifest
        return 0 if about is None else about.done

    def add(self, start: int, passages: Sequence[Passage], vectors: Vectors) -> None:
        from qdrant_client import models

        with self._place.answering():
            for i in range(0, len(passages), _AT_ONCE):
                end = min(i + _AT_ONCE, len(passages))
                batch = models.Batch(
                    ids=list(range(start + i, start + end)),
                    vectors=vectors[i:end].tolist(),
                    payloads=[_payload(passage) for passage in passages[i:end]],
                )
                self._client.upsert(self._place.collection, points=batch, wait=True)
            self._record(self._manifest, start + len(passages))

    def finish(self, manifest: Manifest, learnt: Mapping[str, Any] | None) -> None:
        with self._place.answering():
            self._record(manifest, manifest.count, learnt=packed(learnt), is_complete=True)
            found = self._client.count(self._place.collection, exact=True).count
        if found != manifest.count:
            raise RetrieverError(f"{self._place} holds {found} of {manifest.count} passages; delete it and build again")

    def forget(self) -> None:
        """Do nothing: `begin` refuses another corpus."""

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _record(self, manifest: Manifest, done: int, *, learnt: bytes | None = None, is_complete: bool = False) -> None:
        from qdrant_client import models

        payload: dict[str, Any] = {"manifest": manifest.as_json(), "done": done, "is_complete": is_complete}
        payload["learnt"] = None if learnt is None else base64.b64encode(learnt).decode()
        batch = models.Batch(ids=[0], vectors=[[1.0]], payloads=[payload])
        self._client.upsert(self._place.about, points=batch, wait=True)


class QdrantStore:
    def __init__(self, place: QdrantPlace, shape: Shape, embedder: Embedder) -> None:
        """Raises ConfigError if the collection is missing or incomplete, or was built with other settings."""
        if place.path is not None and not Path(place.path).is_dir():
            raise ConfigError(
                f"retriever.path={place.path} is not a folder; build it: agentgrpo index --corpus FILE "
                f"retriever=qdrant retriever.path={place.path}"
            )
        self._place, self._shape = place, shape
        self._client = place.connect()
        try:
            with place.answering():
                about = _about(self._client, place)
            self.manifest = opened_record(about, kind="qdrant", shape=shape, embedder=embedder, where=place)
        except BaseException:
            self._client.close()
            raise

    @property
    def count(self) -> int:
        return self.manifest.count

    def nearest(self, queries: Vectors, n: int) -> list[Candidates]:
        from qdrant_client import models

        params = None
        if self._place.url is not None:  # a folder is always searched exactly
            exact = self._shape.index == "exact"
            params = models.SearchParams(exact=exact, hnsw_ef=None if exact else max(n, self._shape.search_candidates))
        requests = [
            models.QueryRequest(query=query.tolist(), limit=n, with_vector=True, with_payload=False, params=params)
            for query in queries
        ]
        with self._answering():
            answers = self._client.query_batch_points(self._place.collection, requests=requests)
        return [
            Candidates(
                [int(point.id) for point in answer.points],
                np.array([point.vector for point in answer.points], np.float32).reshape(-1, self.manifest.dim),
            )
            for answer in answers
        ]

    def passages(self, positions: Sequence[int]) -> list[Passage]:
        with self._answering():
            points = self._client.retrieve(
                self._place.collection, list(positions), with_payload=True, with_vectors=False
            )
        found = {int(point.id): passage_of(point.payload or {}) for point in points}
        if missing := [position for position in positions if position not in found]:
            raise RetrieverError(f"{self._place} has no point {missing[0]} any more", kind="garbage")
        return [found[position] for position in positions]

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Turn any failure during a search into a RetrieverError of kind "transport": no query is to blame."""
        try:
            yield
        except Exception as e:
            raise RetrieverError(f"{self._place}: {self._place.said(e)}", kind="transport") from e

    def close(self) -> None:
        self._client.close()


def open_collection(place: QdrantPlace, shape: Shape, embedder: Embedder) -> tuple[QdrantStore, Manifest]:
    store = QdrantStore(place, shape, embedder)
    return store, store.manifest


def _about(client: Any, place: QdrantPlace) -> Record | None:
    """The builder's record of the collection, or None."""
    if not client.collection_exists(place.about):
        return None
    points = client.retrieve(place.about, [0], with_payload=True)
    if not points:
        return None
    payload = points[0].payload
    learnt = payload["learnt"]
    return Record(
        manifest=Manifest.of(payload["manifest"], place),
        done=payload["done"],
        is_complete=payload["is_complete"],
        learnt=None if learnt is None else base64.b64decode(learnt),
    )


def _payload(passage: Passage) -> dict[str, str]:
    fields = {"id": passage.id, "text": passage.text, "title": passage.title, "url": passage.url}
    return {key: well_formed(value) for key, value in fields.items()}
