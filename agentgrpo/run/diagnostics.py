"""What a run that seems to hang is at, asked from outside or by itself, without disturbing it.

    kill -USR1 PID   every task of the event loop: its stack and what it waits for
    kill -USR2 PID   the stack of every thread
    run.watchdog_s   both, when one step takes longer than that, and again each time as long has passed

All of it is appended to <run>/diagnostics/<pid>.txt, and a line on the screen says so. Nothing here stops, skips or
changes anything: a run that is asked computes the same bits as one that is not. Hence the stacks are read by the
interpreter and not by faulthandler, which walks those of running threads without a lock and now and then ends the
process. A signal is answered when the main thread is back from compiled code, the watchdog's report also before.
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

# --- Every task of an event loop as text: what it is in the middle of, frame by frame, and what that waits for.
#
# Reading only, from any thread: nothing is awaited, called or changed. Seen from another thread a task may move on
# while it is read; what it says is then of two instants.

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


# --- How late an event loop is: the seconds by which its timers miss their time.
#
# Whatever computes or waits on the loop's own thread without awaiting (a tool that calls time.sleep) makes everybody
# else wait just as long. Measured while the loop has nothing better to do than to serve a rollout: an update that holds
# it up is no fault. So are the engine's forwards none, nor the answers to signals; they count, but nobody is blamed for
# them. Nor is anybody for the time in which the thread was ready and other processes had the processors.

PERIOD_S = 0.05
"""Between two timers."""
_PACKAGE = Path(agentgrpo.__file__).parent
_BLAMELESS = tuple(f"{_PACKAGE}/{path}" for path in ("engines/", "run/diagnostics.py"))
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


class _Span:
    """One span of measuring, of one loop."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.loop = asyncio.get_running_loop()
        self.thread, self._native = threading.get_ident(), threading.get_native_id()
        self.await_timer(time.monotonic())

    def await_timer(self, due: float) -> None:
        self.due, self._waited = due, _waited_s(self._native)
        self.culprit: str | None = None
        """Who was seen to have the loop when it was late; "" = nobody to blame."""

    def held_up_s(self) -> float:
        """How late the timer is, without the time in which the thread waited for a processor."""
        return time.monotonic() - self.due - (_waited_s(self._native) - self._waited)


class LoopLag:
    """`measured` is entered on the loop; `look` is called again and again by another thread. say: told once, of the
    first lag above `max_s` that somebody is to blame for; null = never."""

    def __init__(self, *, max_s: float | None, say: Callable[[str], None]) -> None:
        self._max_s, self._say = max_s, say
        self._span: _Span | None = None
        self._timer: asyncio.Handle | None = None
        self._lags: list[float] = []
        self._is_told = False

    @property
    def patience(self) -> float | None:
        """Seconds until the next `look` at most; null = any number."""
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
        """Where the loop is late: see who has it."""
        span = self._span
        if span is None or self._max_s is None or span.culprit is not None:
            return
        if span.held_up_s() > self._max_s:
            span.culprit = _culprit(span)

    def lap(self) -> dict[str, float]:
        """time/loop_lag/p50, p99 and max, in seconds, since the last lap; nothing where nothing was measured."""
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
    """Seconds, so far, in which a thread of this process was ready and had no processor; 0 where the system does not
    say. thread: its native id."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _culprit(span: _Span) -> str:
    """The task that has the loop's thread, and the line of it that is nobody's library."""
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
    """What a training run tells of itself."""

    def step(self, label: str) -> AbstractContextManager[None]:
        """Inside, the watchdog is awake."""
        ...

    def responsive(self, label: str) -> AbstractContextManager[None]:
        """Inside, the event loop is expected to take its turns; entered on it."""
        ...

    def lap(self) -> dict[str, float]:
        """Clocks of the event loop's lag since the last lap."""
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
    """A context manager for the main thread; on leaving, the signals' former handlers are back. Signals reach this
    process alone: one that it forks has the former handlers, and a program that it starts the system's.

    say: prints a line; called from a thread of its own."""

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
        """The former handlers are back."""
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
        except Exception as e:  # whatever it is, it is not the run's concern
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
        """The file is made for the first answer: a process that is killed unasked leaves none."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            file.write(f"=== {at}, {text}\n".encode("utf-8", "replace"))

    def _tell(self, line: str) -> None:
        """From any thread and any handler: where that was interrupted while printing, it must not print."""
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
    """The stack of every thread, innermost frame last. main: where the main thread is, a signal handler not counted."""
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
