"""The tool that runs a program written by the policy."""

from __future__ import annotations

import asyncio
import signal
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from mmap import PAGESIZE
from pathlib import Path
from typing import Any, Literal, TypeAlias

from agentgrpo.core.concurrency import Batcher, Limiter
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.types import Outcome
from agentgrpo.core.untrusted import visible
from agentgrpo.tools.base import ToolResult, Workspace
from agentgrpo.tools.directory import FileProblem, PathRefused, list_within, read_within, write_within
from agentgrpo.tools.sandbox.base import MIB, End, Finished, Sandbox, SandboxLimits, SandboxProgram
from agentgrpo.tools.sandbox.bounds import Bound
from agentgrpo.tools.sandbox.bubblewrap import BubblewrapSandbox
from agentgrpo.tools.sandbox.unsafe import UnsafeSubprocess

MAX_FILES = 1000
"""Files of a workspace that a program sees, and as many folders: fewer than the program may create
(SandboxLimits.max_files).
"""
_TOO_LARGE = "the workspace is too large for a program to see"
_KILLED = 128 + signal.SIGKILL
_Key: TypeAlias = tuple[str, tuple[tuple[str, bytes], ...]]


class PythonTool:
    """`python {"code": "print(6 * 7)"}`: the result is the program's printed output; an exception is reported by its
    last line.

    The output depends on the program's text and the files it sees, except for the clock, the system's entropy and
    memory addresses: sets of texts have a fixed order, and the module random a fixed seed. Equal programs requested at
    the same time therefore run once, and the last `cache_size` results are kept, unless programs write files."""

    def __init__(
        self,
        *,
        sandbox: Literal["bubblewrap", "unsafe_subprocess"] = "bubblewrap",
        workspace: Literal["none", "read_only", "read_write"] = "none",
        timeout_s: float = 5.0,
        memory_mb: int = 256,
        disk_mb: int = 16,
        processes: int = 16,
        max_output_bytes: int = 64 * 1024,
        max_concurrent: int = 8,
        cache_size: int = 1024,
        python: str | None = None,
    ) -> None:
        """workspace: whether programs find copies of the workspace's files in their working directory, and whether
        files that they write there are kept. Raises ConfigError if the sandbox cannot work on this machine."""
        if cache_size < 0:
            raise ConfigError(f"python tool: cache_size={cache_size}; 0 or more is allowed")
        self._limits = SandboxLimits(
            timeout_s=timeout_s,
            memory_mb=memory_mb,
            disk_mb=disk_mb,
            processes=processes,
            max_output_bytes=max_output_bytes,
        )
        self._workspace = workspace
        self.exclusive = workspace != "none"
        self.at_once = max_concurrent
        self._limiter = Limiter(max_concurrent)
        self._batcher: Batcher[None, _Key, Finished] = Batcher(self._answer, max_batch=1, limiter=self._limiter)
        self._cache_size = cache_size
        self._cache: OrderedDict[_Key, Finished] = OrderedDict()
        self.bounds: tuple[Bound, ...] = ()
        """The bounds on a program on this machine; empty for unsafe_subprocess."""
        self.no_groups = ""
        """The reason why no control group bounds the sum of a program's processes; "" if one does."""
        self._sandbox: Sandbox
        if sandbox == "unsafe_subprocess":
            self._sandbox = UnsafeSubprocess(self._limits, python=python)
        else:
            self._sandbox = made = BubblewrapSandbox(self._limits, python=python)
            self.bounds, self.no_groups = made.bounds, made.no_groups
        files = {
            "none": "It finds no files",
            "read_only": "It finds the files of the workspace in its working directory",
            "read_write": "It finds the files of the workspace in its working directory, and what it writes stays",
        }[workspace]
        self.spec = ToolSpec(
            name="python",
            description=(
                f"Runs a Python program and returns what it prints. {files}; standard library only, no network, "
                f"{timeout_s:g} seconds."
            ),
            parameters={
                "type": "object",
                "properties": {"code": {"type": "string", "description": "the program; print what you want to see"}},
                "required": ["code"],
                "additionalProperties": False,
            },
        )

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        code = str(arguments["code"])
        try:
            code.encode("utf-8")
        except UnicodeEncodeError:
            return ToolResult.refused("the program is not valid Unicode")
        if self._workspace == "none":
            return self._told(await self._run(code, {}))
        root = workspace.path
        try:
            files = await asyncio.to_thread(files_in, root, self._limits.disk_mb * MIB)
        except FileProblem as e:
            return ToolResult.failed(str(e))
        finished = await self._run(code, files)
        problem = None
        if self._workspace == "read_write":
            problem = await asyncio.to_thread(keep_files, root, files, finished.files)
        return self._told(finished, problem)

    async def close(self) -> None:
        await self._sandbox.close()

    async def _run(self, code: str, files: Mapping[str, bytes]) -> Finished:
        if self._workspace == "read_write":
            async with self._limiter:
                return await self._sandbox.run(SandboxProgram(code=code, files=files, is_reported=True))
        key = (code, tuple(sorted(files.items())))
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        finished = await self._batcher.ask(None, key)
        was_killed = finished.end is End.EXITED and finished.exit_code == _KILLED
        if finished.end is not End.TIMEOUT and not was_killed:  # a timeout or a kill may be the machine's fault
            self._cache[key] = finished
            if len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        return finished

    async def _answer(self, _: None, keys: list[_Key], arrived: float) -> Sequence[Finished]:
        return [await self._sandbox.run(SandboxProgram(code=code, files=dict(files))) for code, files in keys]

    def _told(self, finished: Finished, problem: str | None = None) -> ToolResult:
        printed = plain_text(finished.output).rstrip()
        why, outcome = problem, Outcome.RUNTIME_ERROR
        if finished.end is End.TIMEOUT:
            why, outcome = f"not done within {self._limits.timeout_s:g} s", Outcome.TIMEOUT
        elif finished.end is End.FLOODED:
            why = f"more than {self._limits.max_output_bytes} bytes printed; the program was stopped"
        elif finished.end is End.OVERFULL:
            why = "too many files, or too large ones; none of the program's are kept"
        elif finished.exit_code > 128:
            why = f"killed by signal {finished.exit_code - 128}"
        elif finished.exit_code:
            why = plain_text(finished.errors).strip().rpartition("\n")[2] or f"exit status {finished.exit_code}"
        if why is None:
            return ToolResult.ok(printed or "nothing was printed")
        return ToolResult(outcome=outcome, text="\n".join(filter(None, (printed, f"error: {why}"))))


def plain_text(printed: bytes) -> str:
    """The program's output as text that is safe to read: without escape sequences, control characters and invisible
    characters; bytes that are not UTF-8 become U+FFFD."""
    return visible(printed.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n"))


def files_in(root: Path, max_bytes: int) -> dict[str, bytes]:
    """Read the regular files within `root`, without links. Raises FileProblem if their size exceeds max_bytes, counted
    in pages like the sandbox's file system: otherwise a lack of room there would look like the machine's failure."""
    files: dict[str, bytes] = {}
    folders, num_folders = [""], 0
    while folders:
        folder = folders.pop()
        num_folders += 1
        for entry in list_within(root, folder, max_entries=MAX_FILES):
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_folder:
                folders.append(name)
            elif entry.num_bytes is not None:
                files[name], is_cut = read_within(root, name, max_bytes=max_bytes)
                max_bytes -= -(-len(files[name]) // PAGESIZE) * PAGESIZE
                if is_cut or max_bytes < 0 or len(files) > MAX_FILES:
                    raise FileProblem(_TOO_LARGE)
        if num_folders > MAX_FILES:
            raise FileProblem(_TOO_LARGE)
    return files


def keep_files(root: Path, before: Mapping[str, bytes], after: Mapping[str, bytes] | None) -> str | None:
    """Write the files that a program has written into the workspace, whatever their names; files that it removed stay.
    Return a message if some could not be kept, else None."""
    if after is None:
        return "the files of the program are not kept"
    for name, content in after.items():
        if before.get(name) != content:
            try:
                write_within(root, name, content, max_files=MAX_FILES)
            except (PathRefused, FileProblem) as e:
                return f"not all files of the program are kept: {e}"
    return None
