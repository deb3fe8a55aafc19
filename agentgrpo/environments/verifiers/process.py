"""The client of the process that runs a verifiers environment."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgrpo.core.errors import ConfigError, EnvironmentFailure
from agentgrpo.environments.program.program import Call
from agentgrpo.environments.started import StartedServer
from agentgrpo.environments.verifiers import worker

MODEL = "policy"
SPLIT, INDEX = "verifiers_split", "verifiers_index"
"""Columns of a task that identify its row."""
_SHOWN = 400
_MAX_LINE = 16 * 2**20


def rows(id: str, arguments: Mapping[str, Any], python: str | None) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return the rows of the package's own splits, "train" and "eval". Raises ConfigError if it cannot be loaded."""
    asked = subprocess.run(
        _argv(id, python), env={**os.environ, **_handed(arguments)}, capture_output=True, check=False
    )
    found: Mapping[str, Sequence[Mapping[str, Any]]] | None
    try:
        found = json.loads(asked.stdout)
    except ValueError:
        found = None  # its standard error has the reason
    if found is not None and asked.returncode == 0:
        return found
    said = asked.stderr.decode("utf-8", "replace").strip().splitlines()
    why = next((line for line in reversed(said) if line.strip()), "it said nothing")[:_SHOWN]
    if "No module named 'verifiers'" in why:
        why = f"{python or 'this Python'} has no verifiers; install it: pip install 'agentgrpo[verifiers]', or name a "
        why += "Python that has it: environment.python=PATH"
    raise ConfigError(f"environment.id={id}: {why}")


def _handed(arguments: Mapping[str, Any]) -> dict[str, str]:
    return {worker.ARGUMENTS: json.dumps(dict(arguments))}


def _argv(id: str, python: str | None) -> list[str]:
    if not id:
        raise ConfigError("environment.id is empty; name an installed package with an environment of verifiers")
    found = sys.executable if python is None else shutil.which(Path(python).expanduser())
    if found is None:
        raise ConfigError(f"environment.python={python}: there is no such program; give the path of a Python")
    return [found, "-P", worker.__file__, id]


class VerifiersProgram:
    """Implements environments.program.program.Program: a rollout of the package, scored by its rubric."""

    def __init__(self, id: str, arguments: Mapping[str, Any], python: str | None, *, start_timeout_s: float) -> None:
        """Raises ConfigError if the interpreter does not exist."""
        self._base, self._id = _argv(id, python), id
        self._folder = tempfile.mkdtemp(prefix="agentgrpo-verifiers-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._started, self._socket = 0, ""
        self._server = StartedServer(
            self._start,
            shown=f"environment.id={id}",
            is_up=self._is_up,
            timeout_s=start_timeout_s,
            variables=_handed(arguments),
        )

    async def ready(self) -> None:
        """Raises EnvironmentFailure."""
        await self._server.ready()

    async def run(self, call: Call) -> object:
        await self.ready()
        try:
            where = {"split": call.task[SPLIT], "index": call.task[INDEX]}
        except KeyError as e:
            raise EnvironmentFailure(
                f"task {call.task['id']} is no row of environment.id={self._id}; use task=verifiers", kind="shape"
            ) from e
        try:
            reader, writer = await asyncio.open_unix_connection(self._socket, limit=_MAX_LINE)
            try:
                writer.write(json.dumps({**where, "base_url": call.base_url, "model": MODEL}).encode() + b"\n")
                said = json.loads(await reader.readline())
            finally:
                writer.close()
        except (OSError, ValueError) as e:
            raise EnvironmentFailure(f"environment.id={self._id}: its process is gone: {e}", kind="server") from e
        if "error" in said:
            raise EnvironmentFailure(f"environment.id={self._id}: {said['error']}", kind="program")
        return {**(said["metrics"] or {}), "reward": said["reward"], "answer": said["answer"]}

    async def close(self) -> None:
        await self._server.close()

    def _start(self) -> list[str]:
        self._started += 1
        self._socket = str(Path(self._folder) / str(self._started))
        return [*self._base, self._socket]

    async def _is_up(self) -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(self._socket)
        except OSError:
            return False
        writer.close()
        return True
