"""Measure the recall of Qdrant's approximate search with Qdrant's own index code in this process, without a server.

    pip install qdrant-edge-py && python scripts/bench/qdrant_recall.py [--dim 512] [--queries 1000]

It uses the passages of the embedded world, our hashed vectors, and the graph of `retriever=qdrant
retriever.index=hnsw`. Recall@10 is relative to the exact search of the same vectors by FAISS; FAISS' own graph with the
same settings is shown for comparison. Many of these passages are nearly alike, which is hard for a graph; other corpora
are easier.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import faiss
import numpy as np
import qdrant_edge as qdrant

from agentgrpo.retrieval.embedder import HashingEmbedder
from agentgrpo.retrieval.index.manifest import Shape
from agentgrpo.worlds.almanac.dataset import Almanac

TOP_K = 10
SHAPE = Shape(index="hnsw")


def graph_of_qdrant(folder: Path, vectors: np.ndarray) -> qdrant.EdgeShard:
    graph = qdrant.HnswIndexConfig(m=SHAPE.links, ef_construct=SHAPE.build_candidates, full_scan_threshold=1)
    config = qdrant.EdgeConfig(
        vectors=qdrant.EdgeVectorParams(size=vectors.shape[1], distance=qdrant.Distance.Dot, hnsw_config=graph),
        # in KiB; otherwise such a small index would be searched exhaustively
        optimizers=qdrant.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=1),
    )
    folder.mkdir()
    shard = qdrant.EdgeShard.create(str(folder), config)
    for start in range(0, len(vectors), 1000):
        points = [qdrant.Point(i, v.tolist(), {}) for i, v in enumerate(vectors[start : start + 1000], start)]
        shard.update(qdrant.UpdateOperation.upsert_points(points))
    shard.optimize()
    return shard


def found_by(shard: qdrant.EdgeShard, queries: np.ndarray, *, exact: bool) -> list[list[int]]:
    params = qdrant.SearchParams(hnsw_ef=None if exact else SHAPE.search_candidates, exact=exact)
    return [
        [int(p.id) for p in shard.search(qdrant.SearchRequest(qdrant.Query.Nearest(q.tolist()), TOP_K, params=params))]
        for q in queries
    ]


def recall(exact: Sequence[Sequence[int]], found: Sequence[Sequence[int]]) -> float:
    return sum(len({*a} & {*b}) for a, b in zip(exact, found, strict=True)) / sum(map(len, exact))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--queries", type=int, default=1000)
    options = parser.parse_args()
    world = Almanac()
    texts = [p.text for p in world.corpora()["vdb"]]
    embedder = HashingEmbedder(dim=options.dim)
    embedder.fit(texts)
    vectors = embedder.embed(texts)
    queries = embedder.embed([task.question for task in world.split("train")][: options.queries])
    flat = faiss.IndexFlatIP(options.dim)
    graph = faiss.IndexHNSWFlat(options.dim, SHAPE.links, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction, graph.hnsw.efSearch = SHAPE.build_candidates, SHAPE.search_candidates
    for index in (flat, graph):
        index.add(vectors)
    exact = flat.search(queries, TOP_K)[1].tolist()
    print(f"{len(texts)} passages, dim {options.dim}, {len(queries)} queries, recall@{TOP_K} against exact search")
    print(f"FAISS hnsw {recall(exact, graph.search(queries, TOP_K)[1].tolist()):.3f}")
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        shard = graph_of_qdrant(Path(folder) / "shard", vectors)
        info = shard.info()
        built = f"{info.indexed_vectors_count} vectors in the graph, {time.process_time() - began:.0f} CPU-seconds"
        print(f"Qdrant hnsw {recall(exact, found_by(shard, queries, exact=False)):.3f} ({built})")
        print(f"Qdrant exact {recall(exact, found_by(shard, queries, exact=True)):.3f}")


if __name__ == "__main__":
    main()
