"""Reports on a run that seems to hang, at a signal or by its watchdog, without disturbing the run.

    kill -USR1 PID   every task of the event loop: its stack and what it waits for
    kill -USR2 PID   the stack of every thread
    run.watchdog_s   both, when a step takes longer than that, and again each time as long has passed

Each report is appended to <run>/diagnostics/<pid>.txt and announced in a line on the screen. Nothing here stops, skips
or changes anything: a run with reports computes the same bits as one without. Hence the stacks are read in Python and
not by faulthandler, which walks the stacks of running threads without a lock and can crash the process. A signal is
answered once the main thread returns from compiled code; the watchdog's report does not wait for that.
"""

from __future__ import annotations

import asyncio
import linecache
import math
import os
import re
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Protocol

import agentgrpo
from agentgrpo.core.errors import ConfigError, line_of

# --- Every task of an event loop as text: its current line, frame by frame, and the awaitable at the end of the chain.
#
# Read-only, from any thread: nothing is awaited, called or changed. A task may move on while another thread reads
# it; its report then mixes two instants.

MAX_NAMES = 20
"""Most names to list for tasks at the same place."""
_KINDS = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))
"""Frame and successor of a coroutine, a generator, an asynchronous generator."""


def describe_tasks(loop: asyncio.AbstractEventLoop, running: FrameType | None) -> str:
    """Describe every unfinished task, grouped by place. running: the frame that the loop's thread is in, which belongs
    to the running task, if there is one."""
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
    """Format a frame as "file:line function"."""
    return f"{_short(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_qualname}"


def frames(innermost: FrameType | None) -> Iterator[FrameType]:
    """Yield frames from the innermost outwards."""
    while innermost is not None:
        yield innermost
        innermost = innermost.f_back


def _order(task: asyncio.Task[Any]) -> tuple[str, int]:
    """Sort key that puts Task-9 before Task-10."""
    text, number = re.fullmatch(r"(.*?)(\d*)", task.get_name(), re.DOTALL).groups()  # type: ignore[union-attr]
    return text, int(number or 0)


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:MAX_NAMES])
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{shown}{more}:"


def _stack(innermost: FrameType | None) -> list[str]:
    """Format the stack, outermost frame first, like a traceback."""
    return [_line(frame) for frame in reversed(list(frames(innermost)))]


def _chain(task: asyncio.Task[Any]) -> Iterator[str]:
    """Format the frames of a task's coroutine, of what it awaits, and so on."""
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
    """Describe what the task's innermost coroutine waits for; asyncio keeps it in a private attribute."""
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
    """Shorten a path to its last three parts, enough to find the file."""
    return str(Path(*Path(path).parts[-3:]))


# --- Lag of an event loop: the seconds by which its timers are late.
#
# Code that computes or blocks on the loop's own thread without awaiting (a tool that calls time.sleep) delays every
# other task by the same time. Lag is measured only while the loop serves a rollout: an update may block it. Lag caused
# by the engine's forward passes or by answers to signals is measured too, but nobody is blamed for it. The same holds
# for time in which the thread was ready but other processes had the processors.

PERIOD_S = 0.05
"""Seconds between two timers."""
_PACKAGE = Path(agentgrpo.__file__).parent
_BLAMELESS = tuple(f"{_PACKAGE}/{path}" for path in ("engines/", "run/diagnostics.py"))
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


class _Span:
    """A measuring span of a loop."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.loop = asyncio.get_running_loop()
        self.thread, self._native = threading.get_ident(), threading.get_native_id()
        self.await_timer(time.monotonic())

    def await_timer(self, due: float) -> None:
        self.due, self._waited = due, _waited_s(self._native)
        self.culprit: str | None = None
        """Task seen on the loop while the timer was late; None = not looked yet, "" = nobody to blame."""

    def held_up_s(self) -> float:
        """Return how late the timer is, without the time in which the thread waited for a processor."""
        return time.monotonic() - self.due - (_waited_s(self._native) - self._waited)


class LoopLag:
    """Measure the lag of an event loop: `measured` is entered on the loop, and another thread calls `look` repeatedly.
    say: called once, for the first lag above `max_s` that has a culprit; max_s=None = never."""

    def __init__(self, *, max_s: float | None, say: Callable[[str], None]) -> None:
        self._max_s, self._say = max_s, say
        self._span: _Span | None = None
        self._timer: asyncio.Handle | None = None
        self._lags: list[float] = []
        self._is_told = False

    @property
    def patience(self) -> float | None:
        """Seconds until the next `look` at most; None = no limit."""
        return None if self._span is None or self._max_s is None else self._max_s / 4

    @contextmanager
    def measured(self, label: str) -> Iterator[None]:
        span = self._span = _Span(label)
        self._timer = span.loop.call_soon(self._ring, span)  # even the shortest span has a measurement
        try:
            yield
        finally:
            self._timer.cancel()
            self._span = None

    def look(self) -> None:
        """If the loop is late, find out which task holds it."""
        span = self._span
        if span is None or self._max_s is None or span.culprit is not None:
            return
        if span.held_up_s() > self._max_s:
            span.culprit = _culprit(span)

    def lap(self) -> dict[str, float]:
        """Return time/loop_lag/p50, p99 and max, in seconds, since the last lap; empty if nothing was measured."""
        lags, self._lags = sorted(self._lags), []
        return {
            f"time/loop_lag/{name}": lags[math.ceil(share * len(lags)) - 1]
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            if lags
        }

    def _ring(self, span: _Span) -> None:
        lag, held_up_s, culprit = time.monotonic() - span.due, span.held_up_s(), span.culprit
        self._lags.append(lag)
        span.await_timer(time.monotonic() + PERIOD_S)
        self._timer = span.loop.call_later(PERIOD_S, self._ring, span)
        if culprit and not self._is_told:
            self._is_told = True
            self._say(
                f"note: {span.label}: the event loop stood still for {held_up_s:.1f} s, held up by {culprit}; all "
                "episodes waited. What blocks belongs into a thread or process of its own (run.max_loop_lag_s; said "
                "once)"
            )


def _waited_s(thread: int) -> float:
    """Return the seconds in which a thread was ready but had no processor, so far; 0 if the system does not report it.
    thread: its native id."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _culprit(span: _Span) -> str:
    """Return the task that holds the loop's thread, and its innermost line outside libraries; "" = no one to blame."""
    task = asyncio.current_task(span.loop)
    frame = sys._current_frames().get(span.thread)
    if task is None or frame is None or any(f.f_code.co_filename.startswith(_BLAMELESS) for f in frames(frame)):
        return ""
    own = next((f for f in frames(frame) if not f.f_code.co_filename.startswith(_LIBRARIES)), frame)
    return f"{task.get_name()} at {place(own)}"


TASKS, THREADS = signal.SIGUSR1, signal.SIGUSR2
FOLDER = "diagnostics"
_WAKE, _END = "", "\0"


class Watch(Protocol):
    """Reports of a training run to its diagnostics."""

    def step(self, label: str) -> AbstractContextManager[None]:
        """Return a context in which the watchdog is active."""
        ...

    def responsive(self, label: str) -> AbstractContextManager[None]:
        """Return a context, to be entered on the event loop, in which the loop must stay responsive."""
        ...

    def lap(self) -> dict[str, float]:
        """Return clocks of the event loop's lag since the last lap."""
        ...


class Unwatched:
    def step(self, label: str) -> AbstractContextManager[None]:
        return nullcontext()

    def responsive(self, label: str) -> AbstractContextManager[None]:
        return nullcontext()

    def lap(self) -> dict[str, float]:
        return {}


@dataclass(frozen=True, slots=True)
class _Step:
    label: str
    began: float
    loop: asyncio.AbstractEventLoop


class Diagnostics:
    """A context manager for the main thread; leaving it restores the signals' former handlers. The handlers serve this
    process alone: a forked child has the former handlers, and a program that it starts has the system's.

    say: prints a line; called from a separate thread."""

    def __init__(
        self, run_dir: Path, *, watchdog_s: float | None, max_loop_lag_s: float | None, say: Callable[[str], None]
    ) -> None:
        for name, value in (("watchdog_s", watchdog_s), ("max_loop_lag_s", max_loop_lag_s)):
            if value is not None and not value > 0:
                raise ConfigError(f"run.{name}={value}; null (never), or more than 0 seconds is allowed")
        self.path = run_dir / FOLDER / f"{os.getpid()}.txt"
        self._watchdog_s, self._say = watchdog_s, say
        self._lag = LoopLag(max_s=max_loop_lag_s, say=self._tell)
        self._lines: SimpleQueue[str] = SimpleQueue()  # its put may be interrupted by a handler that puts
        self._thread = threading.Thread(target=self._run, name="agentgrpo-diagnostics", daemon=True)
        self._step: _Step | None = None
        self._due = 0.0
        self._is_describing = False

    def __enter__(self) -> Diagnostics:
        handlers = {TASKS: self._on_tasks, THREADS: self._on_threads}
        self._before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        _INSTALLED.append(self)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _INSTALLED.remove(self)
        self.uninstall()
        self._lines.put(_END)
        self._thread.join()

    def uninstall(self) -> None:
        """Restore the former signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    @contextmanager
    def step(self, label: str) -> Iterator[None]:
        if self._watchdog_s is None:
            yield
            return
        self._step = _Step(label, time.monotonic(), asyncio.get_running_loop())
        self._due = self._step.began + self._watchdog_s
        self._lines.put(_WAKE)
        try:
            yield
        finally:
            self._step = None

    @contextmanager
    def responsive(self, label: str) -> Iterator[None]:
        with self._lag.measured(label):
            self._lines.put(_WAKE)
            yield

    def lap(self) -> dict[str, float]:
        return self._lag.lap()

    def _on_tasks(self, number: int, frame: FrameType | None) -> None:
        if self._is_describing:  # a second signal within the first
            return
        self._is_describing = True
        try:
            loop = asyncio._get_running_loop()
            text = "no event loop is running\n" if loop is None else describe_tasks(loop, frame)
            self._append(f"SIGUSR1, {text}")
            self._tell(f"SIGUSR1: the tasks of the event loop are in {self.path}")
        except Exception as e:  # no error here may end the run
            self._tell(f"SIGUSR1: the tasks cannot be written down: {line_of(e)}")
        finally:
            self._is_describing = False

    def _on_threads(self, number: int, frame: FrameType | None) -> None:
        try:
            self._append(f"SIGUSR2, {describe_threads(frame)}")
            self._tell(f"SIGUSR2: the stacks of all threads are in {self.path}")
        except Exception as e:
            self._tell(f"SIGUSR2: the stacks cannot be written down: {line_of(e)}")

    def _append(self, text: str) -> None:
        """Append a report. The first report creates the file, so most runs have none."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            file.write(f"=== {at}, {text}\n".encode("utf-8", "replace"))

    def _tell(self, line: str) -> None:
        """Queue a line from any thread or signal handler: a handler may have interrupted a print, so must not print."""
        self._lines.put(line)

    def _run(self) -> None:
        line = _WAKE
        while line != _END:
            try:
                if line:
                    self._say(line)
                self._watch()
                self._lag.look()
            except Exception as e:
                self._lines.put(f"diagnostics: {line_of(e)}")
            try:
                line = self._lines.get(timeout=self._patience())
            except Empty:
                line = _WAKE

    def _patience(self) -> float | None:
        watchdog = None if self._step is None else max(0.0, self._due - time.monotonic())
        return min((s for s in (watchdog, self._lag.patience) if s is not None), default=None)

    def _watch(self) -> None:
        step, now = self._step, time.monotonic()
        if step is None or self._watchdog_s is None or now < self._due:
            return
        self._due = max(self._due + self._watchdog_s, now)
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        self._append(f"{step.label} has taken {now - step.began:.1f} s, {describe_tasks(step.loop, frame)}")
        self._append(f"{step.label}, {describe_threads(frame)}")
        self._say(
            f"note: {step.label} has taken {now - step.began:.0f} s so far (run.watchdog_s={self._watchdog_s:g}); what "
            f"all tasks and threads are at is in {self.path}. The run goes on"
        )


def describe_threads(main: FrameType | None) -> str:
    """Describe the stack of every thread, innermost frame last. main: the main thread's frame below the handler."""
    frames = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main_ident = threading.main_thread().ident
    text = [f"threads: {len(frames)}\n"]
    for ident, frame in frames.items():
        stack = traceback.format_stack(main if main is not None and ident == main_ident else frame)
        text += [f"thread {names.get(ident, ident)}:\n", *stack]
    return "".join(text)


_INSTALLED: list[Diagnostics] = []


def _in_a_forked_child() -> None:
    while _INSTALLED:
        _INSTALLED.pop().uninstall()


os.register_at_fork(after_in_child=_in_a_forked_child)
