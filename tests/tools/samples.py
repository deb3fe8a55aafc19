"""Functions as users write them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal, Optional

CALLS: list[str] = []
EATEN: list[bytes] = []


def weather(
    city: str,
    days: int = 1,
    unit: Literal["c", "f"] = "c",
    shares: dict[str, float] | None = None,
    *,
    notes: Optional[list[str]] = None,  # noqa: UP045
    exact: bool = False,
    anything: Any = (),
) -> str:
    """Forecasts the weather
    of a city.

    Said in the morning.

    Args:
        city: Where, as
            people call it: its name.
        days (int): How many days ahead.
        shares: Of sun.

    Returns:
        The forecast.
    """
    return f"{city} {days} {unit} {shares} {notes} {exact} {anything}"


def say(what: str) -> Any:
    """Answers in several ways."""
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    picture = [{"type": "image", "data": "iVBO", "mimeType": "image/png"}]
    ways = {"text": "caf\u00e9", "none": None, "number": 1.5, "long": "x" * 50, "half": "a\ud800", "list": [1]}
    return {**ways, "parts": parts, "picture": picture}[what]


def variable(name: str) -> str:
    """Reads a variable of its environment."""
    return os.environ[name]


class Thing:
    """Without a text of its own."""


def thing(how: str) -> Any:
    """Returns what no policy can read."""
    return {"bare": Thing(), "inside": [Thing()], "text": "<lambda at 0x7f>", "set": {1}}[how]


def noisy() -> str:
    """Prints."""
    print("to stdout")
    print("to stderr", file=sys.stderr)
    os.write(1, b"\0\0\0\4null")
    os.system("echo from a child; cat")
    return sys.stdin.read()


def fail(how: str) -> object:
    """Fails in several ways."""
    if how == "raise":
        raise ValueError("no such\ncity " + "x" * 1000)
    if how == "exit":
        sys.exit(2)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "recurse":
        fail(how)
    if how == "bad text":
        return Unspeakable()
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "end":
        os._exit(3)
    return None


def fall(how: str, workspace: Path) -> int:
    """Has its process killed."""
    attempts = workspace / "attempts"
    with attempts.open("a") as file:
        file.write("x")
    number = len(attempts.read_text())
    if how == "keeper killed":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3600)
    if how == "by others" and number == 1:
        time.sleep(3600)
    if how == "killed" or number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def eat(megabytes: int) -> int:
    """Keeps memory for good."""
    EATEN.extend(bytes([1]) * 2**20 for _ in range(megabytes))
    return megabytes


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def later(seconds: float) -> str:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return "done"


def draw() -> float:
    """Draws a number."""
    return random.random()


def disorder() -> set[str]:
    """Answers with a set."""
    return set("abcdefghij")


def who(seconds: float = 0.0) -> str:
    """Names its process, and how many calls that has had."""
    CALLS.append("")
    time.sleep(seconds)
    return f"{os.getpid()} {len(CALLS)}"


def count(workspace: Path, name: str) -> list[str]:
    """Writes a file and lists all."""
    (workspace / name).write_text(name)
    return sorted(p.name for p in workspace.iterdir())


def thread_left() -> str:
    """Leaves a thread behind."""
    threading.Thread(target=time.sleep, args=(3600,)).start()
    return "left"


def hang_with_daemon(mark: str) -> None:
    """Ignores what can be ignored, and leaves daemons of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execvp(sys.executable, [sys.executable, "-c", "import time; time.sleep(3600)", mark])
            os._exit(0)
    while True:
        pass


# --- what cannot be described


def unannotated(a) -> None:  # type: ignore[no-untyped-def]
    """A."""


def starred(*a: int) -> None:
    """A."""


def double_starred(**a: int) -> None:
    """A."""


def positional(a: int, /) -> None:
    """A."""


def of_bytes(a: bytes) -> None:
    """A."""


def by_number(a: dict[int, str]) -> None:
    """A."""


def of_path(a: Path) -> None:
    """A."""


def undocumented(a: int) -> None: ...


def only_arguments(a: int) -> None:
    """
    Args:
        a: A.
    """


def of_another(a: int) -> None:
    """A.

    Args:
        b: B.
    """


def unreadable(a: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    """A."""


def yielding() -> Iterator[str]:
    """A."""
    yield "a"


async def yielding_later() -> AsyncIterator[str]:
    """A."""
    yield "a"
