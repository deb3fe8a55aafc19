"""Programs behind bubblewrap: a user, file system, network, process table and host name of their own, made for one
program and gone with it.

    driver --setpriv: no longer root--> bwrap --namespaces, seccomp--> python: inside.py --rlimits--> the program

Between the last two the driver admits it: into a control group, first to go where memory runs out, its files counted.

What a program gets: Python's own library and the system's, read-only; a working directory in memory with copies of the
files it is given; nothing that was there before and nothing that is there after. Files are copied in and out instead of
bound, so that no path of the host, no link and no owner's right is ever at stake. It is a sandbox of namespaces on a
shared kernel: an error of the kernel itself is out of its scope.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from agentgrpo.core.errors import ConfigError, ToolError
from agentgrpo.tools.sandbox.base import MIB, Finished, SandboxLimits, SandboxProgram
from agentgrpo.tools.sandbox.bounds import bounds_of, settings_of
from agentgrpo.tools.sandbox.cgroup import Groups, NoGroups
from agentgrpo.tools.sandbox.disk import PLACE, Counting, count_files, mounting, ways
from agentgrpo.tools.sandbox.process import INSIDE, START_S, Process, order
from agentgrpo.tools.sandbox.seccomp import filter_for

# --- Which Python runs the programs, and the least of this machine that it needs to start.

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
"""Imports what links against libraries of the system, and tells which they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    executable: str
    shown: tuple[str, ...]
    """Absolute paths, bound read-only at the same place: never a home or a checkout, unless Python itself lives there,
    and then only its own library."""
    hidden: tuple[str, ...]
    """Folders within `shown` that are covered: what others have installed."""
    links: tuple[tuple[str, str], ...]
    """(target, path) of links that lead to what is shown."""


def find_interpreter(path: str | None, uid: int | None) -> Interpreter:
    """The Python at `path`, or else this very one, or else the system's: the first that the user `uid` (None = this
    one) can start. Raises ConfigError."""
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
    """The interpreter, or what is wrong with it."""
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
    """The links beside a library that lead to it: programs ask for it by one of them."""
    beside = (p for p in library.parent.iterdir() if p.is_symlink() and p.name.startswith(library.name.split(".so")[0]))
    return [(str(library), str(p)) for p in sorted(beside) if p.resolve() == library]


def _is_open_to_all(path: Path) -> bool:
    readable = stat.S_IROTH | stat.S_IXOTH
    return path.stat().st_mode & readable == readable and all(p.stat().st_mode & stat.S_IXOTH for p in path.parents)


# --- A program that is run in a new sandbox before any other: it says "holds", or what does not.

_PROGRAM = """
import ctypes, os, socket, time
libc = ctypes.CDLL(None, use_errno=True)
with open("/proc/self/status") as file:
    status = {key: value.strip() for key, _, value in (line.partition(":") for line in file)}
with open("/proc/net/dev") as file:
    networks = {line.split(":")[0].strip() for line in file if ":" in line}

def refused(act, *given):
    try:
        act(*given)
    except OSError:
        return True
    return False

def unshare_user():
    if libc.unshare(0x10000000) != 0:
        raise OSError

def fork_all():
    try:
        while len(children) < 4 * PROCESSES:
            children.append(os.fork())
            if children[-1] == 0:
                time.sleep(60)
    finally:
        for pid in children:
            os.kill(pid, 9)

def share_memory():
    made = libc.shmget(0, 4096, 0o1600)
    if made < 0:
        raise OSError
    libc.shmctl(made, 0, None)

def limits_of(pid):
    with open(f"/proc/{pid}/limits") as file:
        return {line[:26].strip(): line[26:].split()[0] for line in file}

children = []
checks = {
    "other processes can be seen": [p for p in os.listdir("/proc") if p.isdigit()] == ["1", "2"],
    "the first process can be changed": all(refused(os.open, f"/proc/1/{n}", 0) for n in ("mem", "maps", "fd")),
    "the first process is not bounded": limits_of(1)["Max address space"] == str(MEMORY),
    "there are capabilities": int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0,
    "system calls are not filtered": (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1"),
    "there is an environment": set(os.environ) <= {"PYTHONHASHSEED", "PWD", "LC_CTYPE"},
    "there is a network": networks <= {"lo"},
    "sockets can be opened": refused(socket.socket) and refused(socket.socket, socket.AF_UNIX),
    "memory can be shared": refused(share_memory) and refused(os.memfd_create, "m"),
    "user namespaces can be made": refused(unshare_user),
    "processes are not bounded": refused(fork_all) and len(children) < PROCESSES,
    "files are not counted": os.statvfs("/tmp").f_files == FILES or not FILES,
    "it does not go first when memory runs out": open("/proc/self/oom_score_adj").read().strip() == "1000",
    "settings of processes can be written": refused(os.open, "/proc/self/oom_score_adj", os.O_WRONLY),
    "it is root": os.getuid() != 0,
    "there is more than Python": set(os.listdir("/")) <= TOP,
    **{f"{path} can be written": refused(os.mkdir, f"{path}/x") for path in ("", "/usr", "/dev", "/proc", *SHOWN)},
}
print("; ".join(name for name, holds in checks.items() if not holds) or "holds")
"""


def self_test(shown: Iterable[str], links: Iterable[str], limits: SandboxLimits, *, is_counted: bool) -> str:
    """The program for a sandbox that shows these paths, and has these links."""
    top = {"proc", "dev", "tmp", *(path.split("/")[1] for path in (*shown, *links))}
    facts = {
        "TOP": top,
        "SHOWN": sorted(shown),
        "PROCESSES": limits.processes,
        "MEMORY": limits.memory_mb * MIB,
        "FILES": limits.max_files if is_counted else 0,
    }
    return "\n".join((*(f"{name} = {value!r}" for name, value in facts.items()), _PROGRAM))


NOBODY = 65534
"""Whose programs they are where the driver is root; who they are inside, whoever the driver is."""
HOME = "/tmp/work"
INSTEAD = "or, if every program may do what you may do, say tools.python.sandbox=unsafe_subprocess"
T = TypeVar("T")


class BubblewrapSandbox:
    """Implements base.Sandbox. Runs a program at once that tests it. Raises ConfigError where it cannot hold."""

    def __init__(self, limits: SandboxLimits, *, python: str | None = None, is_grouped: bool = True) -> None:
        """`python` as in find_interpreter. is_grouped: with a control group for each program, where one can be had."""
        is_root = os.geteuid() == 0
        bwrap = _program("bwrap", "bubblewrap")
        drop = [_program("setpriv", "util-linux"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
        interpreter = find_interpreter(python, NOBODY if is_root else None)
        self._limits = limits
        self._filter = filter_for(os.uname().machine)
        self._run_inside = [interpreter.executable, "-s", "-S", "-B", "-c", INSIDE]
        self._groups, self.no_groups = _groups(limits) if is_grouped else (None, "none was asked for")
        links = [path for _, path in interpreter.links]
        for self._counting in ways():
            mounted = self._counting is Counting.MOUNTED
            start = [*(drop if is_root else ()), *(mounting(limits) if mounted else ())]
            self._argv = [*start, bwrap, *_isolation(interpreter, limits, is_mounted=mounted)]
            is_counted = self._counting is not Counting.NONE
            problem = self._tested(self_test(interpreter.shown, links, limits, is_counted=is_counted))
            if problem is None:
                break
        if problem is not None:
            raise ConfigError(
                f"the python tool's sandbox does not hold here: {problem}. It needs bubblewrap 0.8 or newer, and user "
                "namespaces open to this user (user.max_user_namespaces, kernel.unprivileged_userns_clone, "
                "kernel.apparmor_restrict_unprivileged_userns; in a container its seccomp profile). Open them, "
                f"{INSTEAD}"
            )
        self.bounds = tuple(bounds_of(limits, has_group=self._groups is not None, is_counted=is_counted))

    async def run(self, program: SandboxProgram) -> Finished:
        return await self._run(program, self._limits)

    async def _run(self, program: SandboxProgram, limits: SandboxLimits) -> Finished:
        group = self._groups.make() if self._groups else None

        def argv(control: int, source: int, extra: int) -> list[str]:
            return [*self._argv, "--seccomp", str(extra), "--", *self._run_inside, str(control), str(source)]

        def admit(pid: int) -> None:
            if self._groups and group:
                self._groups.enter(group, pid)
            Path(f"/proc/{pid}/oom_score_adj").write_text("1000", encoding="ascii")
            if self._counting is Counting.PICKED:
                count_files(f"/proc/{pid}/root/tmp", limits.max_files)

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
            if self._groups and group:
                self._groups.remove(group)

    async def close(self) -> None:
        """Nothing outlives a program."""
        if self._groups:
            self._groups.close()

    def _tested(self, program: str) -> str | None:
        """What does not hold. It takes the time it takes: a slow machine is none that fails."""
        limits = replace(self._limits, timeout_s=max(START_S, self._limits.timeout_s))
        try:
            done = in_a_loop_of_its_own(self._run(SandboxProgram(code=program, is_reported=True), limits))
        except ToolError as e:
            return str(e)
        printed = (done.output or done.errors).decode("utf-8", "replace")
        said = " ".join(printed.split()) or f"exit code {done.exit_code}"
        return None if said == "holds" else said


def _groups(limits: SandboxLimits) -> tuple[Groups | None, str]:
    """Control groups, or why there are none."""
    try:
        return Groups(settings_of(limits)), ""
    except NoGroups as e:
        return None, str(e)


def _isolation(interpreter: Interpreter, limits: SandboxLimits, *, is_mounted: bool) -> list[str]:
    bound = [word for path in interpreter.shown for word in ("--ro-bind", path, path)]
    covered = [word for path in interpreter.hidden for word in ("--tmpfs", path, "--remount-ro", path)]
    linked = [word for target, path in interpreter.links for word in ("--symlink", target, path)]
    disk = ["--bind", PLACE, "/tmp"] if is_mounted else ["--size", str(limits.disk_mb * MIB), "--tmpfs", "/tmp"]
    return [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--as-pid-1"),
        *("--clearenv", "--setenv", "PYTHONHASHSEED", "0", "--hostname", "sandbox", "--cap-drop", "ALL"),
        *("--uid", str(NOBODY), "--gid", str(NOBODY)),
        *(*disk, "--dir", HOME, "--chdir", HOME),
        *bound,
        *covered,
        *linked,
        *("--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", "--remount-ro", "/dev"),
        *("--remount-ro", "/"),
    ]


def _program(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ConfigError(
            f"the python tool runs programs in bubblewrap, and there is no {name} here; install it (apt-get install "
            f"{package}, dnf install {package}), {INSTEAD}"
        )
    return path


def in_a_loop_of_its_own(work: Coroutine[Any, Any, T]) -> T:
    """`work` done, wherever this is called, also on a running event loop (which waits)."""
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
