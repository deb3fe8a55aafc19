"""Code from outside: environments, programs, tools and terms of the user's own. Its faults stay its own.

    it raises anything              SystemExit, KeyboardInterrupt and CancelledError too: the call has failed
    it cancels the task it runs in  the call has failed
    it ignores its cancellation     it is left behind: the caller goes on, and a late result comes to nothing
    it blocks the event loop        a line names it after BLOCKED_S; past its time limit it is interrupted, and the
                                    time limits of all others do not count those seconds
    it forks                        the child ends where it would return, or with the process (`forks_ended`)
    it changes the process          the working directory, handlers of signals, filters of warnings and such are put
                                    back, and a line names the code

A plain function is called by `called`, or in a thread by an `OwnThread`; a coroutine function by a `Caller`, in a task
of its own. `run_loop` runs the event loop of a process with such code.
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
from time import monotonic, sleep  # as they are now: code from outside may replace them
from types import FrameType
from typing import Any, Generic, TypeVar, cast
from weakref import WeakSet

from agentgrpo.core.concurrency import current_limit, extend_limit, standstill
from agentgrpo.core.errors import EpisodeError, TrainingError, boundary

T = TypeVar("T")
BLOCKED_S = 5.0
PATIENCE_S = 5.0
"""Until a cancelled task is left behind."""
CLOSE_S = 60.0
"""For a call that no time limit bounds any more."""
_POLL_S = 0.5
_SHORT_S = 0.5
"""A standstill that no time limit needs to leave out."""
_CANCELS = 10
"""Further ones, for code that swallows the first."""
_LOG = logging.getLogger(__name__)


class Overdue(BaseException):
    """Raised inside code that blocks the event loop past its time limit; no `except Exception` swallows it. The message
    says where it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult(Generic[T]):
    """What a call has come to."""

    value: T | None = None
    error: BaseException | None = None

    def result(self) -> T:
        if isinstance(self.error, GeneratorExit):  # which would end whoever awaits this
            raise RuntimeError("a GeneratorExit was raised")
        if isinstance(self.error, asyncio.CancelledError):
            raise asyncio.CancelledError("the call was cancelled from inside")
        if self.error is not None:
            raise self.error
        return cast(T, self.value)


def called(function: Callable[..., T], /, *arguments: Any, **named: Any) -> CallResult[T]:
    """What the plain function returns or raises, in whatever thread this is."""
    with _unchanged(getattr(function, "__qualname__", type(function).__qualname__)):
        try:
            return CallResult(value=function(*arguments, **named))
        except BaseException as e:
            return CallResult(error=e)
    raise AssertionError("unreachable")


class OwnThread:
    """A thread for plain functions that may block: one object's, called one after the other. The object keeps what
    belongs to a thread, such as a database connection.

    There are as many threads as objects, so no object waits until another one is done. A call whose caller is cancelled
    is left to itself, and the next call gets a new thread. No thread keeps the process from ending. `end` ends it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] | None = None
        self._thread: int | None = None

    async def call(self, function: Callable[..., T], /, *arguments: Any, **named: Any) -> CallResult[T]:
        """The value or the error of the function. The notes of a CancelledError say at which line the function was."""
        if self._calls is None:
            self._calls = SimpleQueue()
            thread = threading.Thread(target=_take_calls, args=(self._calls,), name=self._name, daemon=True)
            thread.start()
            self._thread = thread.ident
        context, answered = copy_context(), Future[CallResult[T]]()
        answered.set_running_or_notify_cancel()  # a caller that goes does not cancel it
        self._calls.put(lambda: answered.set_result(context.run(called, function, *arguments, **named)))
        try:
            return await asyncio.wrap_future(answered)
        except asyncio.CancelledError as e:
            e.add_note(f"at {_place(_outermost(self._thread))}")
            self.end()
            raise

    def end(self) -> None:
        """The thread ends behind the call that it is in, if there is such a call."""
        if self._calls is not None:
            self._calls.put(None)
            self._calls = None


def _outermost(thread: int | None) -> FrameType | None:
    """The frame of the function that `called` calls in the thread: frames further in may be of the standard library."""
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
    """Filters that make errors of warnings, which those of libraries then are, too."""
    return {row for row in warnings.filters if row[0] == "error"}


def _fatal_warnings_are(kept: set[Any]) -> None:
    rows = [row for row in warnings.filters if row[0] != "error" or row in kept]
    warnings.resetwarnings()  # which tells all modules that have an old answer
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
"""What the whole process has -> how it is read, and set."""
_kept: dict[str, Any] = {}
"""Of _STATE, while `run_loop` runs."""
_told: set[str] = set()


@contextmanager
def _unchanged(what: str) -> Iterator[None]:
    """The process is as it was, when code from outside is done with it; a child that this has forked ends."""
    process = os.getpid()
    is_main = threading.current_thread() is threading.main_thread()
    handlers = [signal.getsignal(number) for number in _SIGNALS]
    try:
        yield
    finally:
        if os.getpid() != process:  # it has the parent's open files and tasks, and must do nothing with them
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
    """What the block forks, and does not end, is ended behind it; not the programs that it starts."""
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
    """Linux: a process below this one that loses its parent becomes a child of this one."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)


def _forks() -> set[int]:
    """Children of this process that run its own program."""
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
    """Code from outside that has a thread, from one await to the next."""

    what: str
    since: float
    due: float | None
    """When it is interrupted; None = never."""
    is_told: bool = False


_holders: dict[int, _Holder] = {}
"""By thread."""


@contextmanager
def holding(what: str) -> Iterator[None]:
    """`what` has this thread's event loop."""
    thread, limit = threading.get_ident(), current_limit()
    before = _holders.get(thread)
    holder = _holders[thread] = _Holder(what, monotonic(), None if limit is None else limit.when())
    _watched()
    try:
        with _unchanged(what):
            yield
    except Overdue:
        extend_limit(PATIENCE_S)  # for what must be cleared away, now that the attempt ends
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
    """Whoever else wants SIGURG keeps it. By default nothing comes of it."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGURG) is signal.SIG_DFL:
        signal.signal(signal.SIGURG, _interrupt)


def _place(frame: FrameType | None) -> str:
    if frame is None:
        return "an unknown line"
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_qualname}"


# --- Coroutines


class _Steps(Awaitable[T]):
    """Awaits `work`, and knows when it has the event loop."""

    def __init__(self, what: str, work: Awaitable[T]) -> None:
        self._what, self._work = what, work
        self.is_closed = False
        """Python itself gives the coroutine up."""

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
    """What comes of the coroutine function, for a task that is there for it: nobody has cancelled the task any more
    when this returns. what: for the line about code that blocks the event loop."""
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
        with suppress(asyncio.CancelledError):  # it may be on its way still
            await asyncio.sleep(0)
    return result


class Caller:
    """Calls coroutine functions of one object, one after the other in one task: what the object keeps open between its
    calls, such as a task group or a context variable, stays right. `name` is the object's. End it with `end`."""

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
        """The function's value. Raises `cls` for whatever it raises, and past `within_s`, naming `stage`; a caller that
        is cancelled meanwhile finds the stage in the notes of its CancelledError. hint: it ends the message of a call
        that is late."""
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
        """There is no further call: it was ended, or left behind."""
        return self._is_ended

    def end(self) -> None:
        self._is_ended = True
        self._calls.put_nowait(None)

    async def _stop(self, call: _Call) -> None:
        call.is_stopped = True
        await asyncio.sleep(0)  # it has begun
        self._is_ended |= not await stopped(self._task, call.answered, what=call.what)

    async def _live(self) -> None:
        while (call := await self._calls.get()) is not None:
            call.answered.set_result(await awaited(call.what, call.function))


async def call_once(
    cls: Callable[..., EpisodeError], stage: str, name: str, function: Callable[..., Awaitable[T]], *arguments: Any
) -> T:
    """As Caller(name).call, for an object that is called once."""
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
        """Where it was when it was stopped, as far as that is known."""
        error = self.answered.result().error if self.answered.done() else None
        return "".join(f", {note}" for note in getattr(error, "__notes__", ()))


async def stopped(
    task: asyncio.Task[Any], ended: asyncio.Future[Any], *, what: str, patience_s: float = PATIENCE_S
) -> bool:
    """Whether `task` ends what it does when it is cancelled, again and again, within `patience_s`. Else it is left
    behind: nobody waits for it, not even the end of the event loop."""
    if ended.done():
        return True
    try:
        task.cancel()
        await asyncio.wait((ended,), timeout=patience_s / 2)  # in peace: it may have something to clear away
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
            asyncio.tasks._unregister_task(task)  # or asyncio.run would wait for it, without end
    return ended.done()


_left_behind: set[asyncio.Task[Any]] = set()
"""An event loop holds its tasks weakly, and complains where one is lost."""


def _forget(task: asyncio.Task[Any]) -> None:
    _left_behind.discard(task)
    if not task.cancelled():
        task.exception()  # seen


# --- The event loop


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run. Code from outside cannot stop the event loop, nor keep it from ending: not by loop.stop(), nor by
    what a task of its own raises, nor by a task that ignores its cancellation."""
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
    """A child that comes back to the event loop, out of a task that code from outside has made, ends there."""
    for loop in _loops:
        if loop.is_running():
            loop.call_soon(os._exit, 1)


os.register_at_fork(after_in_child=_in_a_fork)


async def _stop_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*(stopped(task, task, what=task.get_name()) for task in others))
