"""Run a command and leave nothing of it behind: guard.py CONTROL_FD COMMAND...

The guard ends the command and all its children as soon as the other end of CONTROL_FD is closed: by the process that
started the guard, or by the kernel when that process dies, however it dies. If the command ends by itself, the guard
writes its exit status to CONTROL_FD. Standard library only; run as a script, never imported."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 1.0
"""Seconds between SIGTERM and SIGKILL."""
SWEEP_S = 2.0


def main() -> None:
    control, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":  # adopt the orphans of the command's children
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    child = start(command)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    told = False
    while (status := reaped(child)) is None and not told:
        ready, _, _ = select.select([control, awake], [], [])
        told = control in ready
        if awake in ready:
            os.read(awake, 1024)
    if status is not None:
        with suppress(OSError):
            code = os.waitstatus_to_exitcode(status)
            os.write(control, (f"exit code {code}" if code >= 0 else f"signal {-code}").encode())
    else:
        kill(child, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while reaped(child) is None and time.monotonic() < deadline:
            select.select([awake], [], [], 0.05)
    kill(child, signal.SIGKILL)
    sweep()


def start(command: list[str]) -> int:
    """Start the command in its own process group."""
    child = os.fork()
    if child:
        with suppress(OSError):  # it has ended already, or has set its group itself
            os.setpgid(child, child)
        return child
    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as e:
        os.write(2, f"{command[0]}: {e.strerror}\n".encode())
        os._exit(127)


def reaped(child: int) -> int | None:
    with suppress(ChildProcessError):
        pid, status = os.waitpid(child, os.WNOHANG)
        return status if pid else None
    return None


def kill(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def sweep() -> None:
    """Kill processes that have left the group: each is our child by now, or becomes one when its parent is killed."""
    deadline = time.monotonic() + SWEEP_S
    while time.monotonic() < deadline:
        for listing in Path("/proc/self/task").glob("*/children"):
            for pid in listing.read_text().split():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(int(pid), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


if __name__ == "__main__":
    main()
