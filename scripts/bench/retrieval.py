"""Benchmark indexes of a large corpus: build cost, and latency of queries in process and through the server.

OMP_NUM_THREADS=1 python scripts/bench/retrieval.py --passages 1000000 --dim 256

The passages are generated from made-up words, drawn by Zipf's law: the bench depends on their number, not their
content. Recall is relative to the exact search of the same vectors (the hashing embedder), not to a ground truth.
Queries are words of passages. Every client asks its next query when it has received its last answer. Everything shares
one core: the clients' own CPU time is part of the figures, and most of it for the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import conditions
from clients import cpu_of, cycled, load
from measure import peak_rss_mb
from passages import queries_of, write_corpus
from results import show
from rich.table import Table

from agentgrpo.cli.retriever import build_index
from agentgrpo.records.screen import Bar
from agentgrpo.retrieval import faiss_index
from agentgrpo.retrieval.base import Backend
from agentgrpo.retrieval.batching import Batched
from agentgrpo.retrieval.corpus import CorpusFile
from agentgrpo.retrieval.embedder import HashingEmbedder
from agentgrpo.retrieval.index.building import restore
from agentgrpo.retrieval.index.faiss_file import FILE, FaissStore
from agentgrpo.retrieval.index.manifest import Shape
from agentgrpo.retrieval.index.passages import OFFSETS, PASSAGES, PassageFile
from agentgrpo.retrieval.index.vectors import VectorBackend
from agentgrpo.retrieval.index.words import build_words, open_words
from agentgrpo.retrieval.wire import row_of

KINDS = ("flat", "ivf", "hnsw", "bm25")
CLIENTS = (1, 8, 64)
TOP_K = 5
MAX_BATCH = {"on": 256, "off": 1}


@dataclass(frozen=True)
class Part:
    """One piece of work, done by a separate process."""

    step: str
    kind: str
    folder: str
    dim: int
    lists: int
    seconds: float = 0.0
    batching: str = "on"

    @property
    def of_kind(self) -> Path:
        return Path(self.folder, self.kind)


# --- building


def build(part: Part) -> dict[str, Any]:
    """ivf, hnsw and bm25 are built on the passages and vectors of the flat index."""
    flat, folder = Path(part.folder, "flat"), part.of_kind
    began, cpu = time.perf_counter(), time.process_time()
    if part.kind != "flat":
        folder.mkdir(exist_ok=True)
        for name in (PASSAGES, OFFSETS, "embedder.json"):
            if not (folder / name).exists():
                os.link(flat / name, folder / name)
    if part.kind == "bm25":
        build_words(folder, PassageFile.in_folder(folder), "english", lambda *_: None)
    else:
        if part.kind != "flat":
            shutil.copyfile(flat / "begun.json", folder / "begun.json")
            begun = json.loads((folder / "begun.json").read_text())
            (folder / "begun.json").write_text(json.dumps({**begun, "index": part.kind}))
            if not (folder / FILE).exists():
                shutil.copyfile(flat / FILE, folder / "vectors.part")
        embedder = HashingEmbedder(dim=part.dim)
        indexer = faiss_index.indexer(out=folder, embedder=embedder, index=part.kind, lists=part.lists)
        with CorpusFile(Path(part.folder, "corpus.jsonl")) as corpus, Bar(what="passages") as bar:
            asyncio.run(build_index(indexer, corpus, bar=bar))
    index = folder / FILE if part.kind != "bm25" else folder / "words"
    files = index.rglob("*") if index.is_dir() else [index]
    return {
        "wall_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu,
        "peak_rss_mb": peak_rss_mb(),
        "index_mb": sum(file.stat().st_size for file in files if file.is_file()) / 2**20,
    }


def backend_of(part: Part) -> Backend:
    passages = PassageFile.in_folder(part.of_kind)
    if part.kind == "bm25":
        return open_words(part.of_kind, passages, "english")
    embedder = HashingEmbedder(dim=part.dim)
    restore(embedder, part.of_kind)
    shape = Shape(index=part.kind, lists=part.lists)
    return VectorBackend(FaissStore(part.of_kind / FILE, passages, shape), embedder=embedder)


# --- searching


def search(part: Part) -> dict[str, Any]:
    """Search in this process with every number of clients, batching on and off; also measure the recall of the exact
    search's results.
    """
    backend = backend_of(part)
    queries = queries_of(PassageFile.in_folder(part.of_kind), 5000)

    async def levels(max_batch: int) -> list[dict[str, float]]:
        retriever = Batched(backend, max_batch=max_batch, cache_size=0)
        rows = cycled(queries)
        cpu = time.process_time
        found = [await load(lambda q: retriever.search(q, top_k=TOP_K), rows, n, part.seconds, cpu) for n in CLIENTS]
        await retriever.close()
        return found

    rows = [
        {"where": "in process", "batching": batching, **row}
        for batching, max_batch in MAX_BATCH.items()
        for row in asyncio.run(levels(max_batch))
    ]
    rss = peak_rss_mb()
    return {"rows": rows, "peak_rss_mb": rss, "recall": recall(part, backend, queries[:100])}


def recall(part: Part, backend: Backend, queries: Sequence[str]) -> float | None:
    if part.kind not in ("ivf", "hnsw"):
        return None
    exact = backend_of(Part("search", "flat", part.folder, part.dim, part.lists)).search_batch(queries, TOP_K)
    found = backend.search_batch(queries, TOP_K)
    shares = [len({p.id for p in a} & {p.id for p in b}) / len(b) for a, b in zip(found, exact, strict=True) if b]  # type: ignore[union-attr, arg-type]
    return sum(shares) / len(shares)


async def serve_app(part: Part) -> None:
    from agentgrpo.retrieval.server.app import RetrievalApp
    from agentgrpo.retrieval.server.running import listening, serve, url_of

    retriever = Batched(backend_of(part), max_batch=MAX_BATCH[part.batching], cache_size=0)
    with listening("127.0.0.1", 0) as bound:
        port = url_of(bound).rpartition(":")[2]
        await serve(RetrievalApp({"vdb": retriever}).asgi, bound, grace_s=5, ready=lambda: print(port, flush=True))


@contextmanager
def server(part: Part) -> Iterator[tuple[int, int]]:
    """Yield the server's port and its process."""
    process = subprocess.Popen(command(part), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline()), process.pid
    finally:
        process.terminate()
        process.wait()


async def ask_server(
    port: int, pid: int, queries: Sequence[str], seconds: float, expected: Any
) -> list[dict[str, float]]:
    """Query over kept connections, one query a request."""
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(max(CLIENTS)):
        free.put_nowait(await asyncio.open_connection("127.0.0.1", port))

    async def ask(query: str) -> Any:
        reader, writer = connection = free.get_nowait()
        body = json.dumps({"queries": [query], "topk": TOP_K, "return_scores": True}).encode()
        writer.write(b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        reply = json.loads(await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0])))
        free.put_nowait(connection)
        return reply

    if row_of((await ask(queries[0]))["result"][0], TOP_K) != expected:
        conditions.fail("the server's passages are not those of the search in process", 1)
    rows = cycled(queries)
    found = [await load(ask, rows, n, seconds, lambda: time.process_time() + cpu_of(pid)) for n in CLIENTS]
    while not free.empty():
        free.get_nowait()[1].close()
    return found


# --- the whole bench


def command(part: Part) -> list[str]:
    return [sys.executable, "-W", "ignore", __file__, "--part", json.dumps(asdict(part))]


def done(part: Part) -> dict[str, Any]:
    """Run the part in a process and return the report on its last line."""
    finished = subprocess.run(command(part), stdout=subprocess.PIPE, text=True)
    if finished.returncode:
        conditions.fail(f"{part.step} {part.kind} failed with exit code {finished.returncode}", 1)
    return dict(json.loads(finished.stdout.splitlines()[-1]))


def measured(kind: str, folder: Path, args: argparse.Namespace, tables: tuple[Table, Table]) -> None:
    part = Part("build", kind, str(folder), args.dim, args.lists, args.seconds)
    built = done(part)
    there = done(Part("search", kind, str(folder), args.dim, args.lists, args.seconds))
    queries = queries_of(PassageFile.in_folder(part.of_kind), 5000)
    [expected] = backend_of(part).search_batch(queries[:1], TOP_K)
    rows = list(there["rows"])
    for batching in MAX_BATCH:
        with server(Part("serve", kind, str(folder), args.dim, args.lists, batching=batching)) as (port, pid):
            found = asyncio.run(ask_server(port, pid, queries, args.seconds, expected))
        rows += [{"where": "server", "batching": batching, **row} for row in found]
    recall = "" if there["recall"] is None else f"{there['recall']:.3f}"
    figures = (built["cpu_s"], built["wall_s"], built["peak_rss_mb"], built["index_mb"], there["peak_rss_mb"])
    tables[0].add_row(kind, *(f"{figure:,.0f}" for figure in figures), recall)
    for row in rows:
        times = (f"{row['per_s']:,.0f}", f"{row['p50_ms']:,.1f}", f"{row['p99_ms']:,.1f}", f"{row['cpu_ms']:,.2f}")
        tables[1].add_row(kind, row["where"], row["batching"], str(row["clients"]), *times)
    print(json.dumps({"kind": kind, "built": built, "searched": there | {"rows": rows}}), file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=256, help="of the hashing embedder")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="flat is always built first")
    parser.add_argument("--lists", type=int, default=1024, help="cells of ivf")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load")
    parser.add_argument("--folder", type=Path, help="3 KB a passage; it stays, and what is in it is gone on with")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        part = Part(**json.loads(args.part))
        if part.step == "serve":
            asyncio.run(serve_app(part))
        else:
            print(json.dumps(build(part) if part.step == "build" else search(part)))
        return
    conditions.require_positive(passages=args.passages, dim=args.dim, lists=args.lists)
    conditions.pin()
    title = f"{args.passages:,} generated passages, {args.dim} numbers a vector"
    tables = (
        Table("index", "CPU s", "wall s", "peak MB", "index MB", "searching MB", f"recall@{TOP_K}", title=title),
        Table(
            "index", "where", "batching", "clients", "queries/s", "p50 ms", "p99 ms", "CPU ms", title=f"top_k={TOP_K}"
        ),
    )
    with tempfile.TemporaryDirectory() if args.folder is None else nullcontext(args.folder) as folder:
        if not (corpus := Path(folder, "corpus.jsonl")).is_file():
            write_corpus(corpus, args.passages)
        for kind in dict.fromkeys(["flat", *args.kinds]):
            measured(kind, Path(folder), args, tables)
    for table in tables:
        show(table)


if __name__ == "__main__":
    main()
