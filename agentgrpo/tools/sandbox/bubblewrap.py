"""Programs behind bubblewrap: a user, file system, network, process table and host name of their own, made for one
program and gone with it.

    driver --setpriv: no longer root--> bwrap --namespaces, seccomp--> python: inside.py --rlimits--> the program

What a program gets: Python's own library and the system's, read-only; a working directory in memory with copies of the
files it is given; nothing that was there before and nothing that is there after. Files are copied in and out instead of
bound, so that no path of the host, no link and no owner's right is ever at stake. It is a sandbox of namespaces on a
shared kernel: an error of the kernel itself is out of its scope.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentgrpo.errors import ConfigError, ToolError
from agentgrpo.tools.sandbox.base import MIB, Finished, Limits, Program
from agentgrpo.tools.sandbox.interpreter import Interpreter, find_interpreter
from agentgrpo.tools.sandbox.process import INSIDE, Process, order
from agentgrpo.tools.sandbox.seccomp import filter_for
from agentgrpo.tools.sandbox.self_test import self_test

NOBODY = 65534
"""Whose programs they are where the driver is root."""
HOME = "/tmp/work"
INSTEAD = "or, if every program may do what you may do, say tools.python.sandbox=unsafe_subprocess"
T = TypeVar("T")


class BubblewrapSandbox:
    """Implements base.Sandbox. Runs a program at once that tests it. Raises ConfigError where it cannot hold."""

    def __init__(self, limits: Limits, *, python: str | None = None) -> None:
        """`python` as in find_interpreter."""
        is_root = os.geteuid() == 0
        bwrap = _program("bwrap", "bubblewrap")
        drop = [_program("setpriv", "util-linux"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
        interpreter = find_interpreter(python, NOBODY if is_root else None)
        self._limits = limits
        self._filter = filter_for(os.uname().machine)
        self._argv = [*(drop if is_root else ()), bwrap, *_isolation(interpreter, limits)]
        self._run_inside = [interpreter.executable, "-s", "-S", "-B", "-c", INSIDE]
        _test(self, self_test(interpreter.shown, [path for _, path in interpreter.links], limits.processes))

    async def run(self, program: Program) -> Finished:
        def argv(control: int, source: int, extra: int) -> list[str]:
            return [*self._argv, "--seccomp", str(extra), "--", *self._run_inside, str(control), str(source)]

        process = Process(
            argv,
            order=order(program, self._limits, HOME),
            limits=self._limits,
            extra=self._filter,
            is_wrapped=True,
        )
        return await process.run()

    async def close(self) -> None:
        """Nothing outlives a program."""


def _isolation(interpreter: Interpreter, limits: Limits) -> list[str]:
    bound = [word for path in interpreter.shown for word in ("--ro-bind", path, path)]
    covered = [word for path in interpreter.hidden for word in ("--tmpfs", path, "--remount-ro", path)]
    linked = [word for target, path in interpreter.links for word in ("--symlink", target, path)]
    return [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--as-pid-1"),
        *("--clearenv", "--setenv", "PYTHONHASHSEED", "0", "--hostname", "sandbox", "--cap-drop", "ALL"),
        *("--size", str(limits.disk_mb * MIB), "--tmpfs", "/tmp", "--dir", HOME, "--chdir", HOME),
        *bound,
        *covered,
        *linked,
        *("--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"),
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


def _test(sandbox: BubblewrapSandbox, program: str) -> None:
    try:
        done = in_a_loop_of_its_own(sandbox.run(Program(code=program)))
        printed = (done.output or done.errors).decode("utf-8", "replace")
        said = " ".join(printed.split()) or f"exit code {done.exit_code}"
    except ToolError as e:
        said = str(e)
    if said != "holds":
        raise ConfigError(
            f"the python tool's sandbox does not hold here: {said}. It needs bubblewrap 0.8 or newer, and user "
            "namespaces open to this user (user.max_user_namespaces, kernel.unprivileged_userns_clone, "
            f"kernel.apparmor_restrict_unprivileged_userns; in a container its seccomp profile). Open them, {INSTEAD}"
        )


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
