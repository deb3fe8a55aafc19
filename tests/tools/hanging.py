"""Twelve tools that never come to an end, each in its own way. A function takes `mark`, and whatever processes it
starts carry that on their command line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from agentgrpo.tools.base import Tool
from agentgrpo.tools.functions import FunctionTool
from scripts.soak.troubles import Awaiting

SLEEPER = "import time; time.sleep(3600)"


def busy_loop(mark: str) -> None:
    """Computes for ever."""
    while True:
        pass


def sleep(mark: str) -> None:
    """Sleeps."""
    time.sleep(3600)


def deadlock(mark: str) -> None:
    """Waits for a lock that it holds, in threads too."""
    lock = threading.Lock()
    lock.acquire()
    for _ in range(4):
        threading.Thread(target=lock.acquire).start()
    lock.acquire()


def blocked_pipe(mark: str) -> None:
    """Writes to a pipe that nobody reads."""
    _, writing = os.pipe()
    while True:
        os.write(writing, b"x" * 65536)


def ignored_sigterm(mark: str) -> None:
    """Ignores every signal that can be ignored."""
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)
    time.sleep(3600)


def output_flood(mark: str) -> None:
    """Prints for ever, by children too."""
    subprocess.Popen([sys.executable, "-c", "while True: print('x' * 65536)", mark])
    while True:
        print("x" * 65536)


def daemon(mark: str) -> None:
    """Leaves a process that has cut all ties, and waits for it."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.execv(sys.executable, [sys.executable, "-c", SLEEPER, mark])
        os._exit(0)
    while True:
        time.sleep(1)


def regex_catastrophe(mark: str) -> None:
    """Stays in one call of C code that holds the interpreter's lock."""
    re.match(r"(a+)+$", "a" * 64 + "!")


def fifo(mark: str, workspace: Path) -> None:
    """Opens a pipe that nobody else opens."""
    path = workspace / f"pipe-{os.getpid()}"
    os.mkfifo(path)
    path.read_bytes()


def slow_drip(mark: str) -> str:
    """Always has a little more to come."""

    def drops() -> Iterator[str]:
        while True:
            time.sleep(0.02)
            yield "."

    return "".join(drops())


FUNCTIONS = (
    *(busy_loop, sleep, deadlock, blocked_pipe, ignored_sigterm, output_flood, daemon, regex_catastrophe, fifo),
    slow_drip,
)
HANGING: Mapping[str, Callable[[], Tool]] = {
    "await_never": lambda: Awaiting("awaiting", stubborn=0),
    "swallowed_cancellation": lambda: Awaiting("awaiting", stubborn=3),
    **{f.__name__: lambda f=f: FunctionTool(f, processes=4) for f in FUNCTIONS},
}
"""Name -> what makes such a tool."""
