"""Every task of an event loop as text: what it is in the middle of, frame by frame, and what that waits for.

Reading only, from any thread: nothing is awaited, called or changed. Seen from another thread a task may move on while
it is read; what it says is then of two instants.
"""

from __future__ import annotations

import asyncio
import linecache
import re
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

MAX_NAMES = 20
"""Tasks that are named where many are at the same place."""
_KINDS = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))
"""Frame and successor of a coroutine, a generator, an asynchronous generator."""


def describe_tasks(loop: asyncio.AbstractEventLoop, running: FrameType | None) -> str:
    """Every task that is not done, those at the same place together. running: the frame that the loop's thread is in,
    which is that of the task under way, if one is."""
    current = asyncio.current_task(loop)
    places: dict[str, list[str]] = {}
    for task in sorted(asyncio.all_tasks(loop), key=_order):
        lines = [*_stack(running), "running now"] if task is current else [*_chain(task), _awaited(task)]
        places.setdefault("".join(f"    {line}\n" for line in lines), []).append(task.get_name())
    total = sum(map(len, places.values()))
    return f"tasks: {total}, places: {len(places)}\n" + "".join(
        f"{_named(names)}\n{text}" for text, names in places.items()
    )


def place(frame: FrameType) -> str:
    """file:line function."""
    return f"{_short(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_qualname}"


def frames(innermost: FrameType | None) -> Iterator[FrameType]:
    """From the innermost outwards."""
    while innermost is not None:
        yield innermost
        innermost = innermost.f_back


def _order(task: asyncio.Task[Any]) -> tuple[str, int]:
    """Task-9 before Task-10."""
    text, number = re.fullmatch(r"(.*?)(\d*)", task.get_name(), re.DOTALL).groups()  # type: ignore[union-attr]
    return text, int(number or 0)


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:MAX_NAMES])
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{shown}{more}:"


def _stack(innermost: FrameType | None) -> list[str]:
    """Outermost first, as a traceback is."""
    return [_line(frame) for frame in reversed(list(frames(innermost)))]


def _chain(task: asyncio.Task[Any]) -> Iterator[str]:
    """The coroutine of a task, what it awaits, what that awaits, ..."""
    link: object = task.get_coro()
    while link is not None:
        link, frame = _next(link)
        if frame is not None:
            yield _line(frame)


def _next(link: object) -> tuple[object, FrameType | None]:
    for frame, successor in _KINDS:
        if hasattr(link, frame):
            return getattr(link, successor), getattr(link, frame)
    return None, None


def _awaited(task: asyncio.Task[Any]) -> str:
    """What the innermost of them waits for; asyncio keeps it in a private place."""
    awaited = getattr(task, "_fut_waiter", None)
    if awaited is None:
        return "ready to run"
    if isinstance(awaited, asyncio.Task):
        return f"awaits {awaited.get_name()}"
    if children := getattr(awaited, "_children", None):  # of asyncio.gather
        names = [c.get_name() if isinstance(c, asyncio.Task) else "a future" for c in children if not c.done()]
        return f"awaits {len(names)} of {len(children)}: {_named(names).removesuffix(':')}"
    return "awaits a future"


def _line(frame: FrameType) -> str:
    source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return f"{place(frame)}{'  | ' if source else ''}{source}"


def _short(path: str) -> str:
    """Relative to what it was imported from, near enough to find it."""
    return str(Path(*Path(path).parts[-3:]))
