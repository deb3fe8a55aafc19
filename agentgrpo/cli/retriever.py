"""`agentgrpo index` and `agentgrpo serve-retriever`: build a corpus's index, and serve a retriever to other machines.
Neither loads a model, except for an embedder or reranker that is one."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from agentgrpo.config.admission import override
from agentgrpo.config.build import build_node, takes
from agentgrpo.config.registry import REGISTRY
from agentgrpo.core.commands import Command, VerbResult
from agentgrpo.core.durable import RunLock
from agentgrpo.core.errors import ConfigError, DataError, RunDirectoryError
from agentgrpo.records.screen import Bar
from agentgrpo.retrieval.base import Indexer, Probed, Reranker, Retriever
from agentgrpo.retrieval.corpus import CorpusFile
from agentgrpo.retrieval.server.questions import RequestLimits
from agentgrpo.run.context import StopRequest
from agentgrpo.services.gate import Gate

# --- Building an index from a corpus, batch by batch: an interrupted build can be continued.

BATCH = 1000
"""Passages in memory at a time."""
GRACE_S = 60.0
"""Seconds after a signal for work that cannot be interrupted."""


async def build_index(
    indexer: Indexer, corpus: CorpusFile, *, bar: Bar, batch: int = BATCH, now: Callable[[], float] = time.monotonic
) -> int:
    """Index all passages of a corpus and return their number; all can then be searched.

    SIGINT and SIGTERM raise Preempted after the current batch: the same call continues from there, as it does after a
    kill at any time. A second signal ends the process (see StopRequest)."""
    began, before = now(), indexer.count
    with StopRequest("the same command goes on where it was", grace_s=GRACE_S, at_once=lambda: None) as stop:
        passages = corpus.passages()
        if before:
            bar.say(f"{before:,} passages are stored already; going on with the next one")
        indexer.resume(passages)
        while taken := list(islice(passages, batch)):
            stop.refuse_to_go_on()
            indexer.add(taken)
            bar.reached("stored", indexer.count, corpus.position, corpus.size)
        if not indexer.count:
            raise DataError(f"{corpus.path} has no passages; write one JSON object per line")

        def going_on(title: str, done: int, total: int) -> None:
            stop.refuse_to_go_on()
            bar.reached(title, done, done, total)

        stop.refuse_to_go_on()
        indexer.finish(going_on)
    seconds = now() - began
    rate = "" if before else f", {indexer.count / max(seconds, 1e-9):,.0f} a second"
    bar.say(f"{indexer.count:,} passages in {seconds:,.1f} s{rate}")
    return indexer.count


FOLDER = "faiss_index"
"""The retriever preset whose index is a folder."""
_LIMITS = {
    "max_queries": "queries",
    "max_top_k": "top_k",
    "max_passages": "passages",
    "max_body_bytes": "body_bytes",
    "max_waiting": "waiting",
}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# --- index


def index_overrides(arguments: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """Choose the folder index unless the command line chooses another retriever. Raises ConfigError."""
    chosen = _chosen(overrides)
    if chosen not in (None, FOLDER):
        return []
    if arguments["out"] is None:
        raise ConfigError("index needs a target for the index: --out DIR, or retriever=qdrant or pgvector")
    return [f"retriever={FOLDER}"] if chosen is None else []


def index(config: Mapping[str, Any], command: Command) -> VerbResult:
    """Run `agentgrpo index`: exit code 0 if every passage of the corpus is stored and can be searched for."""
    given, node = command.arguments, config["retriever"]
    if given["corpus"] is None:
        raise ConfigError("index needs a corpus: --corpus FILE, JSON lines, plain or gzipped")
    if node["name"] not in REGISTRY["indexer"]:
        known = ", ".join(REGISTRY["indexer"])
        raise ConfigError(f"retriever={node['name']} has no index to build; allowed are {known}")
    out = None if given["out"] is None else Path(given["out"])
    own = {key: value for key, value in node.items() if key == "name" or takes("indexer", node, key)}
    with CorpusFile(Path(given["corpus"])) as corpus, _alone(out), Bar(what="passages") as bar:
        indexer: Indexer = build_node("indexer", own, out=out)
        count = asyncio.run(build_index(indexer, corpus, bar=bar))
    where = f" {override('retriever.path', given['out'])}" if node["name"] == FOLDER else ""
    same = " and the settings given here" if any(line.startswith("retriever.") for line in command.overrides) else ""
    print(f"{count:,} passages; search them with retriever={node['name']}{where}{same}")
    return VerbResult()


def _alone(out: Path | None) -> AbstractContextManager[object]:
    """Lock `out`, if given, against other processes."""
    if out is None:
        return nullcontext()
    try:
        out.mkdir(parents=True, exist_ok=True)
        return RunLock(out)
    except RunDirectoryError as e:
        raise RunDirectoryError(f"{str(e).removesuffix('run.dir')}--out") from e
    except OSError as e:
        raise ConfigError(f"--out {out}: {e.strerror}; give a directory, or a place where one can be made") from e


# --- serve-retriever


def serve_overrides(arguments: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """Turn --index DIR into the retriever over that folder. Raises ConfigError."""
    if arguments["index"] is None:
        return []
    chosen = _chosen(overrides)
    if chosen not in (None, FOLDER):
        raise ConfigError(
            f"--index is a folder of retriever={FOLDER}, and retriever={chosen} was chosen; leave one of them out"
        )
    if not Path(arguments["index"]).exists():
        raise ConfigError(
            f"--index {arguments['index']} does not exist; build it: agentgrpo index --corpus FILE --out DIR"
        )
    return [f"retriever={FOLDER}"] if chosen is None else []


def serve(config: Mapping[str, Any], command: Command) -> VerbResult:
    """Run `agentgrpo serve-retriever`: serves until it is stopped, then exit code 0."""
    for needed in ("starlette", "uvicorn"):
        if find_spec(needed) is None:
            raise ConfigError(f"serve-retriever needs {needed}: pip install 'agentgrpo[serve]'")
    given = command.arguments
    numbers = {name: number_of(given, name) for name in _LIMITS}
    limits = RequestLimits(**{_LIMITS[name]: number for name, number in numbers.items() if number is not None})
    logging.captureWarnings(True)
    if given["index"] is not None:
        config = {**config, "retriever": {**config["retriever"], "path": given["index"]}}
    asyncio.run(_serve(config, given, limits))
    return VerbResult()


async def _serve(config: Mapping[str, Any], given: Mapping[str, Any], limits: RequestLimits) -> None:
    from agentgrpo.retrieval.server.app import RetrievalApp
    from agentgrpo.retrieval.server.running import serve, url_of

    log_every, grace_s = number_of(given, "log_every"), number_of(given, "grace_s")
    for name, number in (("log-every", log_every), ("grace-s", grace_s)):
        if number is not None and number < 1:
            raise ConfigError(f"--{name} {number}; at least 1 is allowed")
    with opened(given) as (bound, gate):  # before minutes of loading, as it may fail
        retrievers, reranker = _retrievers(config)
        try:
            for retriever in retrievers.values():
                if isinstance(retriever, Probed):
                    await retriever.probe()
            app = RetrievalApp(retrievers, reranker, limits=limits, log_every=log_every or 1000, say=say)

            def ready() -> None:
                print(f"serving {url_of(bound)}{next(iter(app.paths))}", flush=True)

            await serve(app.asgi, bound, gate=gate, limits=limits, grace_s=grace_s or 30, ready=ready)
        finally:
            for retriever in retrievers.values():
                await retriever.close()
    say(f"stopped after {app.traffic.counts['requests']} requests")


def _retrievers(config: Mapping[str, Any]) -> tuple[Mapping[str, Retriever], Reranker | None]:
    """Build the configured retrievers and reranker; the task's corpora are read only for a retriever over them."""
    if config["suite"]:
        raise ConfigError("a suite's members have separate corpora; serve one of them: suite=none task=...")
    node, environment = config["retriever"], config["environment"]
    given: dict[str, Any] = {}
    thesaurus = None
    if takes("retriever", node, "corpora"):
        dataset = build_node("task", config["task"])
        given, thesaurus = {"corpora": dataset.corpora()}, dataset.thesaurus()
        if not given["corpora"]:
            raise ConfigError(
                f"task={config['task']['name']} has no corpus to search; give --index DIR, or task=jsonl "
                "task.corpus=FILE task.questions=FILE"
            )
    retrievers: Mapping[str, Retriever] = build_node("retriever", node, **given)
    reranker: Reranker | None = None
    if takes("environment", environment, "reranker") and "reranker" in environment:
        reranker = build_node("reranker", environment["reranker"], thesaurus=thesaurus)
    return retrievers, reranker


# --- arguments


@contextmanager
def opened(given: Mapping[str, Any]) -> Iterator[tuple[socket.socket, Gate]]:
    """Open the socket and the gate for a verb's --host, --port, --allow-host and --api-key-env. A key generated here is
    printed once. Raises ConfigError."""
    from agentgrpo.retrieval.server.running import listening

    host, port = given["host"] or "127.0.0.1", number_of(given, "port")
    with listening(host, 8000 if port is None else port) as bound:
        gate = Gate.at(bound, host, allow_host=given["allow_host"], api_key_env=given["api_key_env"])
        if gate.key is not None and given["api_key_env"] is None:
            say(f"key: {gate.key} (made for this start; clients name a variable with it: api_key_env=NAME)")
        yield bound, gate


def _chosen(overrides: Sequence[str]) -> str | None:
    """Return the retriever preset chosen on the command line, or None."""
    chosen = [line.partition("=")[2] for line in overrides if line.partition("=")[0].lstrip("+") == "retriever"]
    return chosen[-1] if chosen else None


def number_of(given: Mapping[str, Any], name: str) -> int | None:
    text = given[name]
    try:
        return None if text is None else int(text)
    except ValueError as e:
        raise ConfigError(f"--{name.replace('_', '-')} {text}; a whole number is allowed") from e
