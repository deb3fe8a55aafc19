"""Concurrent callers of one backend: slots, one call for questions that arrive together, one call for equal questions.
Also time limits that leave out time the limited block cannot help, and work that would hold up the event loop.

Everything works in any number of consecutive event loops, as `asyncio.run` makes them.

A cancelled caller never disturbs the others: it takes no slot, and a call is stopped when nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, TypeVar

from agentgrpo.core.errors import ConfigError

T = TypeVar("T")
G = TypeVar("G", bound=Hashable)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class PerLoop(Generic[T]):
    """One value per event loop, made on first use; values of closed loops are forgotten."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[asyncio.AbstractEventLoop, T] = {}

    def get(self) -> T:
        loop = asyncio.get_running_loop()
        if loop not in self._values:
            self._values = {known: value for known, value in self._values.items() if not known.is_closed()}
            self._values[loop] = self._make()
        return self._values[loop]

    def pop(self) -> T | None:
        """Remove and return the running loop's value; None if it has no value."""
        return self._values.pop(asyncio.get_running_loop(), None)


class Limiter:
    """`async with limiter`: at most `limit` holders at a time, first come first served.

    A caller gets a slot at once only if one is free and nobody waits (asyncio.Semaphore since Python 3.11)."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ConfigError(f"a limit of {limit} concurrent calls; at least 1 is allowed")
        self._slots = PerLoop(lambda: asyncio.Semaphore(limit))

    async def __aenter__(self) -> None:
        await self._slots.get().acquire()

    async def __aexit__(self, *_: object) -> None:
        self._slots.get().release()


@dataclass(slots=True, eq=False)
class _Question(Generic[G, K]):
    group: G
    key: K
    arrived: float
    waiters: list[asyncio.Future[Any]] = field(default_factory=list)
    batch: list[_Question[G, K]] | None = None
    """The questions of its call, once the call is made."""
    call: asyncio.Task[None] | None = None


@dataclass(slots=True, eq=False)
class _Traffic(Generic[G, K]):
    """One event loop's questions."""

    unanswered: dict[tuple[G, K], _Question[G, K]] = field(default_factory=dict)
    queue: list[_Question[G, K]] = field(default_factory=list)
    """Questions of `unanswered` that are not asked yet, oldest first."""
    collecting: bool = False
    """Whether a task is about to take the next batch from the queue."""
    calls: set[asyncio.Task[None]] = field(default_factory=set)
    """Keeps running tasks alive: the event loop itself holds them weakly."""

    def take(self, max_batch: int) -> list[_Question[G, K]]:
        """Remove and return the oldest question of the queue and up to max_batch - 1 others of its group."""
        batch = [q for q in self.queue if q.group == self.queue[0].group][:max_batch]
        taken = set(map(id, batch))
        self.queue = [q for q in self.queue if id(q) not in taken]
        for question in batch:
            question.batch, question.call = batch, asyncio.current_task()
        return batch

    def settle(self, question: _Question[G, K], outcome: object) -> None:
        self._forget(question)
        for waiter in question.waiters:
            if not waiter.done():
                waiter.set_result(outcome)

    def abandon(self, question: _Question[G, K]) -> None:
        """Drop a question without waiters: unqueue it, or stop its call if the whole batch has no waiters."""
        if not self._forget(question):
            return
        if question.batch is None:
            self.queue.remove(question)
        elif question.call is not None and not any(mate.waiters for mate in question.batch):
            question.call.cancel()

    def _forget(self, question: _Question[G, K]) -> bool:
        known = self.unanswered.get((question.group, question.key)) is question
        if known:
            del self.unanswered[question.group, question.key]
        return known


class Batcher(Generic[G, K, V]):
    """Questions of one group that arrive in the same event-loop tick, or while all slots are taken, become one call;
    equal questions in flight are asked once.

    `answer(group, keys, arrived)` gets distinct keys in order of arrival and the loop time at which the first of them
    arrived; it returns one outcome per key, where an Exception is that key's failure alone. An exception that it raises
    is the failure of every key. A call occupies one slot of `limiter` from start to end."""

    def __init__(
        self,
        answer: Callable[[G, list[K], float], Awaitable[Sequence[V | Exception]]],
        *,
        max_batch: int,
        limiter: Limiter,
    ) -> None:
        if max_batch < 1:
            raise ConfigError(f"max_batch={max_batch}; at least 1 is allowed")
        self._answer = answer
        self._max_batch = max_batch
        self._limiter = limiter
        self._traffic: PerLoop[_Traffic[G, K]] = PerLoop(_Traffic)

    async def ask(self, group: G, key: K) -> V:
        """Return the answer to `key`; equal questions get the very same object. Raises the key's failure."""
        traffic, loop = self._traffic.get(), asyncio.get_running_loop()
        question = traffic.unanswered.get((group, key))
        if question is None:
            question = traffic.unanswered[group, key] = _Question(group, key, loop.time())
            traffic.queue.append(question)
            if not traffic.collecting:
                self._collect(traffic)
        waiter: asyncio.Future[V | Exception] = loop.create_future()
        question.waiters.append(waiter)
        try:
            outcome = await waiter
        finally:
            question.waiters.remove(waiter)
            if not question.waiters:
                traffic.abandon(question)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _collect(self, traffic: _Traffic[G, K]) -> None:
        """Start a call in the next tick, so that it gathers all questions of this tick."""
        traffic.collecting = True
        asyncio.get_running_loop().call_soon(self._start, traffic)

    def _start(self, traffic: _Traffic[G, K]) -> None:
        call = asyncio.get_running_loop().create_task(self._call(traffic))
        traffic.calls.add(call)
        call.add_done_callback(traffic.calls.discard)

    async def _call(self, traffic: _Traffic[G, K]) -> None:
        collecting = True
        batch: list[_Question[G, K]] = []
        outcomes: Sequence[V | Exception] = ()
        try:
            async with self._limiter:
                batch = traffic.take(self._max_batch)
                collecting = traffic.collecting = False
                if traffic.queue:
                    self._collect(traffic)
                if batch:
                    outcomes = await self._answer(batch[0].group, [q.key for q in batch], batch[0].arrived)
            if len(outcomes) != len(batch):
                raise RuntimeError(f"{len(batch)} questions got {len(outcomes)} answers; give each question one")
        except asyncio.CancelledError:
            # Abandoned, or cancelled from outside: remaining waiters must not wait for ever.
            if collecting:
                traffic.collecting = False
            for question in traffic.queue if collecting else batch:
                for waiter in question.waiters:
                    waiter.cancel()
            raise
        except Exception as error:
            outcomes = [error] * len(batch)
        for question, outcome in zip(batch, outcomes, strict=True):
            traffic.settle(question, outcome)


_limit: ContextVar[asyncio.Timeout | None] = ContextVar("limit", default=None)
_limits: PerLoop[set[asyncio.Timeout]] = PerLoop(set)
"""The limits under way."""


@asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[None]:
    """Raise TimeoutError if the block takes over `seconds`, time inside `uncounted` left out (None: never)."""
    async with asyncio.timeout(seconds) as limit:
        token, limits = _limit.set(limit), _limits.get()
        limits.add(limit)
        try:
            yield
        finally:
            limits.discard(limit)
            _limit.reset(token)


def current_limit() -> asyncio.Timeout | None:
    """The time limit that this task runs under."""
    return _limit.get()


def standstill(seconds: float, *, counted: asyncio.Timeout | None) -> None:
    """Extend every limit but `counted` by these seconds, for which the running event loop, if any, stood still."""
    if asyncio._get_running_loop() is not None:
        for limit in _limits.get() - {counted}:
            _postpone(limit, seconds)


def extend_limit(seconds: float) -> None:
    """Let this task's time limit end in `seconds` from now, whatever it was."""
    limit = _limit.get()
    if limit is not None and (ends := limit.when()) is not None:
        _postpone(limit, asyncio.get_running_loop().time() + seconds - ends)


def _postpone(limit: asyncio.Timeout, seconds: float) -> None:
    if (ends := limit.when()) is not None and not limit.expired():
        with suppress(RuntimeError):  # its block is being left
            limit.reschedule(ends + seconds)


@contextmanager
def uncounted() -> Iterator[None]:
    """Pause this task's time limit, if any, during the block, also for other tasks under the same limit."""
    limit, loop = _limit.get(), asyncio.get_running_loop()
    ends = None if limit is None else limit.when()
    if limit is None or ends is None:
        yield
        return
    began = loop.time()
    limit.reschedule(None)
    try:
        yield
    finally:
        with suppress(RuntimeError):  # this task has outlived the limited block
            limit.reschedule(ends + loop.time() - began)


LONG = 2**14
"""Maximum number of characters that are read on the event loop itself, which takes some milliseconds."""
_READERS = ThreadPoolExecutor(2, "agentgrpo-reader")
"""Separate from the event loop's own threads: user functions may hold all of those and wait for this work."""


async def off_loop(work: Callable[[], T], *, size: int) -> T:
    """Return the result of `work`, run in a thread if it reads more than LONG characters. A cancelled caller waits
    until work that has begun is over, so nothing changes behind its back."""
    if size <= LONG:
        return work()
    running = _READERS.submit(copy_context().run, work)
    try:
        return await asyncio.shield(asyncio.wrap_future(running))
    except asyncio.CancelledError:
        if not running.cancel():
            await asyncio.wait((asyncio.wrap_future(running),))
        raise


async def on_idle_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` on an event loop in a separate thread; returns or raises its outcome.

    An engine in this process computes on the caller's loop, tenths of a second at a time. A hundred consecutive
    exchanges with a process would each wait that long for their turn. A cancelled caller cancels the coroutine, and
    returns when the coroutine has ended."""
    here, there = asyncio.get_running_loop(), _idle_loop()
    ended: asyncio.Future[asyncio.Task[T]] = here.create_future()
    tasks: list[asyncio.Task[T]] = []

    def start() -> None:
        tasks.append(there.create_task(coroutine))
        tasks[0].add_done_callback(deliver)

    def deliver(task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the caller may be gone
        with suppress(RuntimeError):  # the caller's loop is closed
            here.call_soon_threadsafe(settle, task)

    def settle(task: asyncio.Task[T]) -> None:
        if not ended.done():
            ended.set_result(task)

    there.call_soon_threadsafe(start, context=Context())
    try:
        return (await asyncio.shield(ended)).result()
    except asyncio.CancelledError:
        there.call_soon_threadsafe(lambda: tasks[0].cancel())
        await ended
        raise


@cache
def _idle_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="agentgrpo-idle-loop", daemon=True).start()
    return loop
