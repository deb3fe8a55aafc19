"""Concurrent clients that ask one query after another; their latency and the CPU time of all processes involved."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Ask = Callable[[str], Awaitable[Any]]


async def load(
    ask: Ask, queries: Iterator[str], clients: int, seconds: float, cpu: Callable[[], float]
) -> dict[str, float]:
    """Run `clients` concurrent clients for `seconds`, after a tenth of that as warm-up; run longer if fewer queries
    than clients were answered. cpu: CPU seconds used so far by all processes involved."""
    waited: list[float] = []
    asked_in_all = 0
    await ask(next(queries))  # one-time work, such as reading the index from disk
    began, cpu_before = time.perf_counter(), cpu()
    measured = began + 0.1 * seconds

    async def client() -> None:
        nonlocal asked_in_all
        while (asked := time.perf_counter()) < began + 1.1 * seconds or len(waited) < clients:
            await ask(next(queries))
            asked_in_all += 1
            if asked >= measured:
                waited.append(time.perf_counter() - asked)

    await asyncio.gather(*(client() for _ in range(clients)))
    took = time.perf_counter() - measured
    p50, p99 = (np.quantile(waited, (0.5, 0.99)) * 1e3).tolist()
    cpu_ms = 1e3 * (cpu() - cpu_before) / asked_in_all
    return {"clients": clients, "per_s": len(waited) / took, "p50_ms": p50, "p99_ms": p99, "cpu_ms": cpu_ms}


def cycled(queries: Sequence[str]) -> Iterator[str]:
    while True:
        yield from queries


def cpu_of(pid: int) -> float:
    """CPU seconds of another process, as reported by Linux."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
