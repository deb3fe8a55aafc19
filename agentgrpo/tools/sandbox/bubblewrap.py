"""Run each program in its own bubblewrap isolation, created for it and removed with it.

    driver --isolation.py--> python: inside.py --rlimits--> the program

Between the last two steps the driver admits the process: it enters a control group, becomes the first victim when
memory runs out, and its files are counted.

A program gets Python's own library and the system's, read-only, and a working directory in memory with copies of its
files; no earlier state is visible and none is left behind. Files are copied in and out instead of bound, so no host
path, link or file permission is ever exposed.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from agentgrpo.core.errors import ConfigError, ToolError
from agentgrpo.tools.sandbox.base import Finished, SandboxLimits, SandboxProgram
from agentgrpo.tools.sandbox.bounds import bounds_of
from agentgrpo.tools.sandbox.isolation import NEEDS, NOBODY, Home, Isolation, View
from agentgrpo.tools.sandbox.process import INSIDE, START_S, Process, order
from agentgrpo.tools.sandbox.seccomp import filter_for
from agentgrpo.tools.sandbox.self_test import fault_in, self_test

# --- Choose the Python that runs the programs, and the smallest part of this machine that it needs to start.

_LIBRARIES = ("/usr/lib", "/usr/lib64")
_DESCRIBE = """
import json, os, sys
for name in ("_ctypes", "_ssl", "_sqlite3", "_bz2", "_lzma", "_hashlib", "_decimal", "zlib", "resource"):
    try:
        __import__(name)
    except ImportError:
        pass
with open("/proc/self/maps") as maps:
    mapped = {line.split(None, 5)[5].strip() for line in maps if ".so" in line}
print(json.dumps({"version": sys.version_info[:2], "executable": os.path.realpath(sys.executable),
    "folders": [p for p in sys.path if os.path.isdir(p)], "libraries": sorted(p for p in mapped if p[0] == "/")}))
"""
"""Imports the modules that link against system libraries, and prints the paths of these libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    executable: str
    shown: tuple[str, ...]
    """Absolute paths, bound read-only at the same place: never a home or a checkout, unless Python itself lives there;
    then only its own library is bound."""
    hidden: tuple[str, ...]
    """Folders within `shown` that appear empty: packages that others have installed."""
    links: tuple[tuple[str, str], ...]
    """(target, path) of links that lead to shown paths."""

    @property
    def view(self) -> View:
        return View(shown=self.shown, covered=self.hidden, links=self.links)


def find_interpreter(path: str | None, uid: int | None) -> Interpreter:
    """Return the first Python that the user `uid` (None = this user) can start: the one at `path` if given, else this
    interpreter, else the system's. Raises ConfigError."""
    candidates = [path] if path else [os.path.realpath(sys.executable), "/usr/bin/python3", "/usr/local/bin/python3"]
    problems = []
    for candidate in dict.fromkeys(os.path.realpath(c) for c in candidates):
        try:
            found = _tried(candidate, uid)
        except PermissionError as e:
            found = f"{candidate} cannot be reached: {e.strerror}"
        if isinstance(found, Interpreter):
            return found
        problems.append(found)
    raise ConfigError(
        f"no Python for the sandbox: {'; '.join(problems)}. Install one (apt-get install python3), or "
        "name one: python=PATH"
    )


def _tried(path: str, uid: int | None) -> Interpreter | str:
    """Return the interpreter, or a text saying why it cannot be used."""
    if not Path(path).is_file():
        return f"{path} is not there"
    if uid is not None and not _is_open_to_all(Path(path)):
        return f"{path} lies where only its owner can go, and programs run as another user"
    return _describe(path)


def _describe(path: str) -> Interpreter | str:
    try:
        done = subprocess.run(
            [path, "-I", "-S", "-B", "-c", _DESCRIBE], capture_output=True, text=True, timeout=30, check=True, env={}
        )
        facts = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as e:
        return f"{path} does not run: {e}"
    if facts["version"] < [3, 9]:
        return f"{path} is Python {'.'.join(map(str, facts['version']))}; 3.9 or newer is needed"
    libraries = [Path(p) for p in facts["libraries"]]
    own = [*map(Path, facts["folders"]), *libraries, Path(facts["executable"])]
    shown = [p for p in _LIBRARIES if Path(p).is_dir() and not Path(p).is_symlink()]
    links = [(str(Path(f"/{n}").readlink()), f"/{n}") for n in ("lib", "lib64") if Path(f"/{n}").is_symlink()]
    shown += [f"/{n}" for n in ("lib", "lib64") if Path(f"/{n}").is_dir() and not Path(f"/{n}").is_symlink()]
    for each in sorted(own, key=lambda p: len(p.parts)):
        if not any(Path(os.path.realpath(each)).is_relative_to(known) for known in shown):
            shown.append(str(each))
            links += _names_of(each) if each in libraries else ()
    hidden = [str(p / n) for p in own for n in ("site-packages", "dist-packages") if (p / n).is_dir()]
    outside = [p for p in hidden if any(Path(p).is_relative_to(s) for s in shown) and not p.startswith("/usr/lib/")]
    return Interpreter(executable=facts["executable"], shown=tuple(shown), hidden=tuple(outside), links=tuple(links))


def _names_of(library: Path) -> list[tuple[str, str]]:
    """Return the links beside a library that lead to it: programs load the library by one of these names."""
    beside = (p for p in library.parent.iterdir() if p.is_symlink() and p.name.startswith(library.name.split(".so")[0]))
    return [(str(library), str(p)) for p in sorted(beside) if p.resolve() == library]


def _is_open_to_all(path: Path) -> bool:
    readable = stat.S_IROTH | stat.S_IXOTH
    return path.stat().st_mode & readable == readable and all(p.stat().st_mode & stat.S_IXOTH for p in path.parents)


T = TypeVar("T")
HOME = "/tmp/work"
_MISSING = (
    "the python tool runs programs in bubblewrap, and there is no {name} here; install it (apt-get install {package}, "
    "dnf install {package}), "
)
_INSTEAD = "or, if every program may do what you may do, say tools.python.sandbox=unsafe_subprocess"


class BubblewrapSandbox:
    """Implements base.Sandbox. The constructor runs a self-test in the sandbox. Raises ConfigError if the isolation
    does not hold.
    """

    def __init__(self, limits: SandboxLimits, *, python: str | None = None, is_grouped: bool = True) -> None:
        """python: see find_interpreter. is_grouped: use a control group for each program, if one can be created."""
        interpreter = find_interpreter(python, NOBODY if os.geteuid() == 0 else None)
        self._limits = limits
        self._filter = filter_for(os.uname().machine)
        self._run_inside = [interpreter.executable, "-s", "-S", "-B", "-c", INSIDE]
        self._isolation = Isolation(
            interpreter.view,
            limits,
            flags=("--as-pid-1", "--clearenv", "--setenv", "PYTHONHASHSEED", "0"),
            is_grouped=is_grouped,
            missing=f"{_MISSING}{_INSTEAD}",
        )
        self.no_groups = self._isolation.no_groups
        problem = self._isolation.settle(lambda: self._tested(interpreter.view))
        if problem is not None:
            raise ConfigError(
                f"the python tool's sandbox does not hold here: {problem}. {NEEDS}. Open them, {_INSTEAD}"
            )
        self.bounds = tuple(
            bounds_of(limits, has_group=self._isolation.has_groups, is_counted=self._isolation.is_counted)
        )

    async def run(self, program: SandboxProgram) -> Finished:
        return await self._run(program, self._limits)

    async def _run(self, program: SandboxProgram, limits: SandboxLimits) -> Finished:
        group = self._isolation.new_group()

        def argv(control: int, source: int, extra: int) -> list[str]:
            return [*self._isolation.argv(Home(path=HOME), extra), *self._run_inside, str(control), str(source)]

        def admit(pid: int) -> None:
            self._isolation.admit(group, pid)
            Path(f"/proc/{pid}/oom_score_adj").write_text("1000", encoding="ascii")

        process = Process(
            argv,
            order=order(program, limits, HOME),
            limits=limits,
            extra=self._filter,
            is_wrapped=True,
            admit=admit,
        )
        try:
            return await process.run()
        finally:
            self._isolation.remove_group(group)

    async def close(self) -> None:
        """No program outlives its `run`, so only the control groups are left to remove."""
        self._isolation.close()

    def _tested(self, view: View) -> str | None:
        """Run the self-test and return the broken promises, or None. Its deadline is long, so that a slow machine does
        not fail it.
        """
        limits = replace(self._limits, timeout_s=max(START_S, self._limits.timeout_s))
        program = self_test(view, limits, is_counted=self._isolation.is_counted)
        try:
            done = in_a_loop_of_its_own(self._run(SandboxProgram(code=program, is_reported=True), limits))
        except ToolError as e:
            return str(e)
        return fault_in(done.output or done.errors, done.exit_code)


def in_a_loop_of_its_own(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end in a new event loop on a thread, even if the caller is on a running loop (which blocks)."""
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(asyncio.run(work))
        except BaseException as e:
            failed.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]
