"""Code from outside: the user's environments, programs, tools and reward terms. Its faults stay within its own calls.

    it raises anything              SystemExit, KeyboardInterrupt and CancelledError too: the call has failed
    it cancels the task it runs in  the call has failed
    it ignores its cancellation     it is left behind: the caller goes on, and a late result is dropped
    it blocks the event loop        a log line names it after BLOCKED_S; past its time limit it is interrupted, and the
                                    time limits of all others do not count those seconds
    it forks                        the child ends where it would return, or with the process (`forks_ended`)
    it changes the process          the working directory, signal handlers, warning filters and other global state are
                                    restored, and a log line names the code

A plain function is called by `called`, or in a thread by an `OwnThread`. A coroutine function is called by a `Caller`
in a separate task. `run_loop` runs the event loop of a process with external code.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from queue import SimpleQueue
from time import monotonic, sleep  # bound now: external code may replace them
from types import FrameType
from typing import Any, Generic, TypeVar, cast
from weakref import WeakSet

from agentgrpo.core.concurrency import current_limit, extend_limit, standstill
from agentgrpo.core.errors import EpisodeError, TrainingError, boundary

T = TypeVar("T")
BLOCKED_S = 5.0
PATIENCE_S = 5.0
"""Seconds until a cancelled task is left behind."""
CLOSE_S = 60.0
"""Seconds for a call that no time limit bounds any more."""
_POLL_S = 0.5
_SHORT_S = 0.5
"""A shorter standstill counts towards all time limits."""
_CANCELS = 10
"""Further cancellations, for code that swallows the first."""
_LOG = logging.getLogger(__name__)


class Overdue(BaseException):
    """Raised inside code that blocks the event loop past its time limit; no `except Exception` swallows it. The message
    gives the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult(Generic[T]):
    """The outcome of a call: its value or its error."""

    value: T | None = None
    error: BaseException | None = None

    def result(self) -> T:
        if isinstance(self.error, GeneratorExit):  # it would end the awaiting coroutine
            raise RuntimeError("a GeneratorExit was raised")
        if isinstance(self.error, asyncio.CancelledError):
            raise asyncio.CancelledError("the call was cancelled from inside")
        if self.error is not None:
            raise self.error
        return cast(T, self.value)


def called(function: Callable[..., T], /, *arguments: Any, **named: Any) -> CallResult[T]:
    """Call a plain function in the current thread; returns its value or its error."""
    with _unchanged(getattr(function, "__qualname__", type(function).__qualname__)):
        try:
            return CallResult(value=function(*arguments, **named))
        except BaseException as e:
            return CallResult(error=e)
    raise AssertionError("unreachable")


class OwnThread:
    """A thread for the plain functions of one object, which may block and are called one after the other. The object
    can keep state that belongs to a thread, such as a database connection.

    Each object has its own thread, so no object waits for another. If a caller is cancelled, its call is left to itself
    and the next call gets a new thread. No thread keeps the process from ending. `end` ends the thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] | None = None
        self._thread: int | None = None

    async def call(self, function: Callable[..., T], /, *arguments: Any, **named: Any) -> CallResult[T]:
        """Return the value or the error of the function. A note of a CancelledError gives the function's last line."""
        if self._calls is None:
            self._calls = SimpleQueue()
            thread = threading.Thread(target=_take_calls, args=(self._calls,), name=self._name, daemon=True)
            thread.start()
            self._thread = thread.ident
        context, answered = copy_context(), Future[CallResult[T]]()
        answered.set_running_or_notify_cancel()  # a cancelled caller does not cancel it
        self._calls.put(lambda: answered.set_result(context.run(called, function, *arguments, **named)))
        try:
            return await asyncio.wrap_future(answered)
        except asyncio.CancelledError as e:
            e.add_note(f"at {_place(_outermost(self._thread))}")
            self.end()
            raise

    def end(self) -> None:
        """End the thread after its current call, if any."""
        if self._calls is not None:
            self._calls.put(None)
            self._calls = None


def _outermost(thread: int | None) -> FrameType | None:
    """Return the frame of the function that `called` runs in the thread; inner frames may be the standard library's."""
    frame = sys._current_frames().get(thread or 0)
    while frame is not None and (frame.f_back is None or frame.f_back.f_code is not called.__code__):
        frame = frame.f_back
    return frame


def _take_calls(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()


# --- The process


def _folder() -> str:
    with suppress(FileNotFoundError):
        return os.getcwd()  # noqa: PTH109, for it is asked after every step
    return ""


def _fatal_warnings() -> set[Any]:
    """Return the filters that turn warnings into errors, those of libraries too."""
    return {row for row in warnings.filters if row[0] == "error"}


def _fatal_warnings_are(kept: set[Any]) -> None:
    rows = [row for row in warnings.filters if row[0] != "error" or row in kept]
    warnings.resetwarnings()  # this also clears the decisions that modules have cached
    warnings.filters[:] = rows  # type: ignore[index]


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_STATE: Mapping[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "the working directory": (_folder, os.chdir),
    "the garbage collector": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "the recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
    "what is logged": (
        lambda: logging.root.manager.disable > logging.WARNING,
        lambda _: logging.disable(logging.NOTSET),
    ),
    "the filters of warnings": (_fatal_warnings, _fatal_warnings_are),
}
"""State of the whole process -> its getter and setter."""
_kept: dict[str, Any] = {}
"""Values of _STATE to restore, while `run_loop` runs."""
_told: set[str] = set()


@contextmanager
def _unchanged(what: str) -> Iterator[None]:
    """Restore the state of the process after external code has run; a child that the code has forked exits."""
    process = os.getpid()
    is_main = threading.current_thread() is threading.main_thread()
    handlers = [signal.getsignal(number) for number in _SIGNALS]
    try:
        yield
    finally:
        if os.getpid() != process:  # the child has the parent's open files and tasks, and must not use them
            os._exit(1)
        changed = []
        for number, handler in zip(_SIGNALS, handlers, strict=True) if is_main else ():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
                changed.append(f"the handler of {number.name}")
        for name, value in _kept.items():
            read, put = _STATE[name]
            if read() != value:
                put(value)
                changed.append(name)
        if news := {*changed} - _told:
            _told.update(news)
            names = ", ".join(sorted(news))
            _LOG.warning("%s has changed %s for all of the process: put back (said once)", what, names)


_SET_CHILD_SUBREAPER = 36


@contextmanager
def forks_ended() -> Iterator[None]:
    """Kill the forks that the block has left running. Programs that it has started are not killed."""
    ours = _forks()
    _adopt(True)
    try:
        yield
    finally:
        late = monotonic() + PATIENCE_S
        while (left := _forks() - ours) and monotonic() < late:
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        _adopt(False)


def _adopt(orphans: bool) -> None:
    """Choose whether descendants that lose their parent become children of this process (Linux)."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)


def _forks() -> set[int]:
    """Return the ids of this process's children that run its own program."""
    found = set()
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found |= {int(pid) for pid in children.read_text("ascii").split() if _program(pid) == _program("self")}
    return found


def _program(pid: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


# --- Who has the event loop


@dataclass(slots=True, eq=False)
class _Holder:
    """External code that occupies a thread, from one await to the next."""

    what: str
    since: float
    due: float | None
    """Time of its interruption; None = never."""
    is_told: bool = False


_holders: dict[int, _Holder] = {}
"""Thread -> the code that occupies it."""


@contextmanager
def holding(what: str) -> Iterator[None]:
    """Record that `what` occupies this thread's event loop during the block."""
    thread, limit = threading.get_ident(), current_limit()
    before = _holders.get(thread)
    holder = _holders[thread] = _Holder(what, monotonic(), None if limit is None else limit.when())
    _watched()
    try:
        with _unchanged(what):
            yield
    except Overdue:
        extend_limit(PATIENCE_S)  # time to clean up, now that the attempt ends
        raise
    finally:
        if before is None:
            del _holders[thread]
        else:
            _holders[thread] = before
        if (seconds := monotonic() - holder.since) > _SHORT_S and before is None:
            standstill(seconds, counted=limit)


@cache
def _watched() -> None:
    threading.Thread(target=_watch, name="agentgrpo-outside", daemon=True).start()


def _watch() -> None:
    main = threading.main_thread().ident
    while True:
        sleep(_POLL_S)
        for thread, holder in list(_holders.items()):
            now = monotonic()
            if now - holder.since > BLOCKED_S and not holder.is_told:
                holder.is_told = True
                _LOG.warning(
                    "%s has held up the event loop for %.0f s, at %s; all episodes wait. What blocks belongs into a "
                    "thread or process of its own",
                    *(holder.what, now - holder.since, _place(sys._current_frames().get(thread))),
                )
            if holder.due is not None and now > holder.due and thread == main:
                signal.pthread_kill(thread, signal.SIGURG)


def _interrupt(number: int, frame: FrameType | None) -> None:
    holder = _holders.get(threading.get_ident())
    if holder is not None and holder.due is not None and monotonic() > holder.due:
        raise Overdue(f"it held up the event loop for {monotonic() - holder.since:.1f} s, at {_place(frame)}")


def _interruptible() -> None:
    """Handle SIGURG, unless another handler is set. By default the signal does nothing."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGURG) is signal.SIG_DFL:
        signal.signal(signal.SIGURG, _interrupt)


def _place(frame: FrameType | None) -> str:
    if frame is None:
        return "an unknown line"
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_qualname}"


# --- Coroutines


class _Steps(Awaitable[T]):
    """Await `work`, and record when it occupies the event loop."""

    def __init__(self, what: str, work: Awaitable[T]) -> None:
        self._what, self._work = what, work
        self.is_closed = False
        """Whether Python itself has closed the coroutine."""

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        go_on: Callable[[Any], Any] = steps.send
        sent: Any = None
        while True:
            try:
                with holding(self._what):
                    awaited = go_on(sent)
            except StopIteration as e:
                return cast(T, e.value)
            try:
                sent, go_on = (yield awaited), steps.send
            except BaseException as e:
                self.is_closed = isinstance(e, GeneratorExit)
                sent, go_on = e, steps.throw


async def awaited(what: str, function: Callable[..., Awaitable[T]], /, *arguments: Any) -> CallResult[T]:
    """Return the value or the error of a coroutine function, in a task that only serves it: on return no cancellation
    of the task is pending. what: the subject of the log line about code that blocks the event loop."""
    try:
        with holding(what):
            steps = _Steps(what, function(*arguments))
    except BaseException as e:
        return CallResult(error=e)
    try:
        result = CallResult(value=await steps)
    except BaseException as e:
        if steps.is_closed:
            raise
        result = CallResult(error=e)
    task = asyncio.current_task()
    assert task is not None
    while task.cancelling():
        task.uncancel()
        with suppress(asyncio.CancelledError):  # a cancellation may still be on its way
            await asyncio.sleep(0)
    return result


class Caller:
    """Call coroutine functions of one object, one after the other in one task, so that a task group or context variable
    that the object keeps open between calls stays valid. `name` names the object. End it with `end`."""

    def __init__(self, name: str) -> None:
        _interruptible()
        self._name = name
        self._calls: asyncio.Queue[_Call | None] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._live(), name=name)
        self._is_ended = False

    async def call(
        self,
        cls: Callable[..., EpisodeError],
        stage: str,
        function: Callable[..., Awaitable[T]],
        *arguments: Any,
        within_s: float | None = None,
        hint: str = "",
    ) -> T:
        """Return the function's value. Raises `cls`, naming `stage`, if the function raises or takes longer than
        `within_s`. If the caller is cancelled, a note of its CancelledError names the stage. hint: the end of the
        message about a late call."""
        if self._is_ended:
            raise cls(f"{stage}: not called, as an earlier call did not end when it was cancelled", kind="left_behind")
        call = _Call(f"{stage} ({self._name})", partial(function, *arguments))
        self._calls.put_nowait(call)
        try:
            await asyncio.wait((call.answered,), timeout=within_s)
        except asyncio.CancelledError as e:
            e.add_note(f"it was in {stage}")
            raise
        finally:
            if not call.answered.done():
                await self._stop(call)
        if call.is_stopped:
            raise cls(f"{stage}: not done within {within_s:g} s{call.place}{hint}", kind="timeout")
        result: CallResult[T] = call.answered.result()
        if isinstance(result.error, Overdue):
            raise cls(f"{stage}: {result.error}, and was interrupted at the time limit", kind="timeout")
        with boundary(cls, stage):
            return result.result()

    @property
    def is_ended(self) -> bool:
        """Whether no further call is possible: the caller was ended, or its task left behind."""
        return self._is_ended

    def end(self) -> None:
        self._is_ended = True
        self._calls.put_nowait(None)

    async def _stop(self, call: _Call) -> None:
        call.is_stopped = True
        await asyncio.sleep(0)  # lets the call begin
        self._is_ended |= not await stopped(self._task, call.answered, what=call.what)

    async def _live(self) -> None:
        while (call := await self._calls.get()) is not None:
            call.answered.set_result(await awaited(call.what, call.function))


async def call_once(
    cls: Callable[..., EpisodeError], stage: str, name: str, function: Callable[..., Awaitable[T]], *arguments: Any
) -> T:
    """Like Caller(name).call, for an object that is called once."""
    caller = Caller(name)
    try:
        return await caller.call(cls, stage, function, *arguments)
    finally:
        caller.end()


class _Call:
    def __init__(self, what: str, function: Callable[[], Awaitable[Any]]) -> None:
        self.what, self.function = what, function
        self.answered: asyncio.Future[CallResult[Any]] = asyncio.get_running_loop().create_future()
        self.is_stopped = False

    @property
    def place(self) -> str:
        """The line at which the call was stopped, if known."""
        error = self.answered.result().error if self.answered.done() else None
        return "".join(f", {note}" for note in getattr(error, "__notes__", ()))


async def stopped(
    task: asyncio.Task[Any], ended: asyncio.Future[Any], *, what: str, patience_s: float = PATIENCE_S
) -> bool:
    """Cancel `task`, repeatedly if needed; returns whether `ended` is done within `patience_s`. Otherwise the task is
    left behind: nobody waits for it, not even the end of the event loop."""
    if ended.done():
        return True
    try:
        task.cancel()
        await asyncio.wait((ended,), timeout=patience_s / 2)  # undisturbed: it may have to clean up
        for _ in range(_CANCELS):
            if ended.done():
                break
            task.cancel()
            await asyncio.wait((ended,), timeout=patience_s / 2 / _CANCELS)
    finally:
        if not ended.done():
            _LOG.error("%s did not stop within %g s of its cancellation: it is left behind", what, patience_s)
            _left_behind.add(task)
            task.add_done_callback(_forget)
            asyncio.tasks._unregister_task(task)  # otherwise asyncio.run would wait for it without end
    return ended.done()


_left_behind: set[asyncio.Task[Any]] = set()
"""Keeps the tasks alive: an event loop holds its tasks weakly, and complains about a lost one."""


def _forget(task: asyncio.Task[Any]) -> None:
    _left_behind.discard(task)
    if not task.cancelled():
        task.exception()  # marks it as retrieved


# --- The event loop


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, but external code can neither stop the event loop nor keep it from ending: not by loop.stop(),
    an error of its own task, or a task that ignores its cancellation."""
    _kept.update({name: read() for name, (read, _) in _STATE.items()})
    running: list[asyncio.Task[T]] = []

    async def whole() -> T:
        if not running:
            running.append(asyncio.get_running_loop().create_task(work, name="agentgrpo-run"))
        return await running[0]

    with asyncio.Runner() as runner:
        _loops.add(runner.get_loop())
        try:
            while True:
                try:
                    return runner.run(whole())
                except BaseException as e:
                    if isinstance(e, asyncio.CancelledError):
                        raise TrainingError("code from outside has cancelled all tasks of the event loop") from e
                    is_stop = isinstance(e, SystemExit | KeyboardInterrupt) or "loop stopped" in str(e)
                    if not is_stop or not running or running[0].done():
                        raise
                    _LOG.warning("code from outside has stopped the event loop (%s); it goes on", repr(e)[:200])
        finally:
            _kept.clear()
            runner.run(_stop_all())


_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def _in_a_fork() -> None:
    """End a forked child that returns to the event loop from a task that external code has made."""
    for loop in _loops:
        if loop.is_running():
            loop.call_soon(os._exit, 1)


os.register_at_fork(after_in_child=_in_a_fork)


async def _stop_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*(stopped(task, task, what=task.get_name()) for task in others))
