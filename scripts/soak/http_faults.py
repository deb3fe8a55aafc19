"""Try every way in which a server can fail, thousands of times each, against a retriever and a web search.

    python -m scripts.soak.http_faults [--requests 10000] [--concurrent 64] [--mode "hangs"]

For each fault, every call must end in time with a typed error of the expected kind; afterwards no task, connection or
file descriptor may be left. Prints a line for each fault; exit code 1 if one fails."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgrpo.core.errors import RetrieverError
from agentgrpo.retrieval.base import Retriever
from agentgrpo.retrieval.http import HttpRetriever
from agentgrpo.retrieval.web import SearxNG
from tests.retrieval.server import FAULTS, Server, hang

TIMEOUT_S = {"timeout": 0.05}
"""Timeout for the timeout fault; other faults use PATIENCE_S, because a busy machine may be slow with many calls at
once.
"""
PATIENCE_S = 30.0
MAX_BYTES = 2**17


def clients(url: str, kind: str, concurrent: int) -> list[Retriever]:
    """A client that posts with a connection for each call, and one that gets over kept connections. Both retry once."""
    settings = {"timeout_s": TIMEOUT_S.get(kind, PATIENCE_S), "backoff_s": 0.0, "max_response_bytes": MAX_BYTES}
    return [
        HttpRetriever(url=url, max_batch=1, retries=1, max_concurrent=concurrent, **settings),
        SearxNG(base_url=url.removesuffix("/retrieve"), retries=1, max_concurrent=concurrent, **settings),
    ]


async def outcome(retriever: Retriever, query: str) -> str:
    try:
        await retriever.search(query, top_k=1)
    except RetrieverError as e:
        return e.kind
    return "found"


async def one_fault(name: str, num_requests: int, concurrent: int) -> tuple[str, list[str]]:
    """Return (figures of the fault, its problems)."""
    behaviour, kind = FAULTS[name]
    asyncio.get_running_loop().set_exception_handler(_tell)
    start, wrong, kinds, slowest = time.monotonic(), list[str](), Counter[str](), 0.0
    async with Server(behaviour, keep_alive=kind != "transport") as server:
        retrievers = clients(server.url, kind, concurrent)
        slots = asyncio.Semaphore(concurrent)

        async def call(i: int) -> None:
            nonlocal slowest
            async with slots:
                began = time.monotonic()
                kinds[await outcome(retrievers[i % 2], f"q{i}")] += 1
                slowest = max(slowest, time.monotonic() - began)

        calls = [asyncio.create_task(call(i)) for i in range(num_requests)]
        done, hanging = await asyncio.wait(calls, timeout=60 + num_requests * 0.1)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        wrong += [f"{len(hanging)} calls hang"] if hanging else []
        wrong += sorted({f"{task.exception()!r}" for task in done if task.exception()})
        if set(kinds) != {kind}:
            wrong.append(f"{dict(kinds)}; {kind} was expected")
        for retriever in retrievers:
            await retriever.close()
        try:
            async with asyncio.timeout(0.1 if behaviour is hang else 20):  # a hanging server ignores disconnects
                await server.until(lambda: server.live == 0)
        except TimeoutError:
            wrong += [] if behaviour is hang else [f"{server.live} connections are open"]
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    wrong += [f"{len(left)} tasks are left: {left[0]}"] if left else []
    seconds = time.monotonic() - start
    return f"{num_requests} calls in {seconds:.1f} s, slowest {slowest:.2f} s, {kind}", wrong


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore streams whose handler was cancelled: the server itself has ended them."""
    if not isinstance(context.get("exception"), asyncio.CancelledError):
        loop.default_exception_handler(context)


def num_files() -> int:
    """Number of open file descriptors of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def soak(names: Sequence[str], num_requests: int, concurrent: int) -> int:
    """Return the number of faults with a problem."""
    failed = 0
    for name in names:
        before = num_files()
        figures, wrong = asyncio.run(one_fault(name, num_requests, concurrent))
        gc.collect()
        after = num_files()
        wrong += [f"{after - before} file descriptors are left"] if after > before else []
        failed += bool(wrong)
        print(f"{'FAIL' if wrong else 'ok':<5}{name:<28}{figures}{'; '.join(['', *wrong])}", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=10_000, help="of each fault")
    parser.add_argument("--concurrent", type=int, default=64)
    parser.add_argument("--mode", action="append", choices=list(FAULTS), help="only this fault")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    names = given.mode or list(FAULTS)
    failed = soak(names, given.requests, given.concurrent)
    print(f"{len(names)} faults x {given.requests} calls: {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
