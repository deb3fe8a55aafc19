"""Code that others have published runs aside, in processes of its own: it may seed Python's one generator, block, crash
or leak, and neither the event loop nor the run's own random numbers notice."""

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
    """The code itself has raised an error. The message is the last line of it."""


class Aside:
    """Calls of one function. Calls with the same `key` reach the same process, one after the other."""

    def __init__(self, function: str, *, what: str, processes: int = 1, timeout_s: float | None = None) -> None:
        """function: module:name; it takes and returns JSON, and is called with Python's and numpy's generators seeded.
        what: for messages. timeout_s: of one call, past which its process is ended."""
        self._what, self._timeout_s = what, timeout_s
        workers = partial(Workers, recycle_after=_RECYCLE_AFTER, max_chars=_MAX_CHARS, memory_mb=_MEMORY_MB)
        self._shards = [workers(function, processes=1) for _ in range(processes)]
        finalize(self, _end_all, self._shards)

    async def call(self, arguments: Mapping[str, Any], *, key: str = "") -> Any:
        """Raises Refused; EnvironmentFailure where it takes too long or its process falls."""
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
        """As `call`, for whoever cannot await it."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self.call(arguments, key=key)).result()

    def close(self) -> None:
        """Ends its processes; so does losing the last reference to it."""
        _end_all(self._shards)


def _end_all(workers: Sequence[Workers]) -> None:
    for one in workers:
        one.end_now()


def refuse_missing(package: str) -> None:
    """Raise ConfigError where `package`, by whose name its environment goes, is not installed; it is not imported."""
    if find_spec(package) is None:
        # the name of an extra has no underscore: pip 23.2, which Python 3.11 brings along, installs nothing then
        extra = package.replace("_", "-")
        raise extra_missing(ImportError(name=package), what=f"environment={package}", extra=extra)


def refusal(where: str, error: Refused) -> ConfigError:
    """Of a setting that the code does not take. where: the setting, with its value."""
    name, _, line = str(error).partition(": ")
    return ConfigError(f"{where}: {line if name == 'ValueError' else error}")
