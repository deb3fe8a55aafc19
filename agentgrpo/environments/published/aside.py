"""Published code runs in separate processes: it may seed Python's global generator, block, crash or leak without effect
on the event loop or the run's random numbers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from typing import Any
from weakref import finalize
from zlib import crc32

from agentgrpo.core.errors import ConfigError, EnvironmentFailure
from agentgrpo.retrieval.lazy import extra_missing
from agentgrpo.services.workers import WorkerCrashed, Workers

_RECYCLE_AFTER, _MEMORY_MB, _MAX_CHARS = 5000, 4096, 1 << 30


class Refused(EnvironmentFailure):
    """The published code raised an error. The message is the error's last line."""


class Aside:
    """Calls one function in worker processes. Calls with the same `key` reach the same process, one after the other."""

    def __init__(self, function: str, *, what: str, processes: int = 1, timeout_s: float | None = None) -> None:
        """function: module:name of a function that takes and returns JSON; Python's and numpy's generators are seeded
        before each call. what: its name in error messages. timeout_s: limit for one call; after that its process is
        ended."""
        self._what, self._timeout_s = what, timeout_s
        workers = partial(Workers, recycle_after=_RECYCLE_AFTER, max_chars=_MAX_CHARS, memory_mb=_MEMORY_MB)
        self._shards = [workers(function, processes=1) for _ in range(processes)]
        finalize(self, _end_all, self._shards)

    async def call(self, arguments: Mapping[str, Any], *, key: str = "") -> Any:
        """Raises Refused, and EnvironmentFailure if the call takes too long or its process crashes."""
        workers = self._shards[crc32(key.encode()) % len(self._shards)]
        request = {"seed": key, "arguments": dict(arguments), "workspace": None}
        try:
            reply = await workers.call(request, timeout_s=self._timeout_s)
        except TimeoutError as e:
            late = f"{self._what} took longer than {self._timeout_s:g} s and was ended; raise environment.timeout_s"
            raise EnvironmentFailure(late, kind="timeout") from e
        except WorkerCrashed as e:
            raise EnvironmentFailure(f"{self._what}: {e}", kind="crash") from e
        if "error" in reply:
            raise Refused(reply["error"])
        return json.loads(reply["text"])

    def call_now(self, arguments: Mapping[str, Any], *, key: str = "") -> Any:
        """Like `call`, for callers that cannot await."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self.call(arguments, key=key)).result()

    def close(self) -> None:
        """End the processes, as losing the last reference does."""
        _end_all(self._shards)


def _end_all(workers: Sequence[Workers]) -> None:
    for one in workers:
        one.end_now()


def refuse_missing(package: str) -> None:
    """Raise ConfigError if `package` is not installed, without importing it. Its environment has the same name."""
    if find_spec(package) is None:
        # extras have no underscore in their names: with one, pip 23.2 (bundled with Python 3.11) installs nothing
        extra = package.replace("_", "-")
        raise extra_missing(ImportError(name=package), what=f"environment={package}", extra=extra)


def refusal(where: str, error: Refused) -> ConfigError:
    """Return the error for a setting that the code rejects. where: the setting, with its value."""
    name, _, line = str(error).partition(": ")
    return ConfigError(f"{where}: {line if name == 'ValueError' else error}")
