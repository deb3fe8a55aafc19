"""Code of others, off the event loop's thread: it may block, sleep or never come back."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agentgrpo.concurrency import Limiter
from agentgrpo.errors import ConfigError, JudgeError

MOST_HANGING = 32
"""Threads that may hang before calls are refused at once: each costs memory that nothing gives back."""


class OffLoop:
    """Runs at most max_concurrent calls at a time, each in a thread of its own and for at most timeout_s, which does
    not count the wait for its turn. A call that is late fails with JudgeError (timeout). Its thread cannot be stopped,
    only be forgotten: it is a daemon, and keeps no program from ending; `hanging` says how many there are."""

    def __init__(self, *, timeout_s: float, max_concurrent: int) -> None:
        if not timeout_s > 0 or max_concurrent < 1:
            raise ConfigError(
                f"timeout_s={timeout_s}, max_concurrent={max_concurrent}; more than 0 seconds and 1 call or more are "
                "allowed"
            )
        self.hanging = 0
        self._timeout_s = timeout_s
        self._limiter = Limiter(max_concurrent)
        self._lock = threading.Lock()

    async def run(self, name: str, call: Callable[[], Any]) -> Any:
        """What `call` returns or raises; what it returns is awaited, in that thread, where it can be."""
        async with self._limiter:
            if self.hanging >= MOST_HANGING:
                raise JudgeError(f"{name}: {self.hanging} calls of it hang; repair it", kind="timeout")
            work = _Work(call)
            threading.Thread(
                target=contextvars.copy_context().run,
                args=(work.do, self._finished),
                name=f"agentgrpo-{name}",
                daemon=True,
            ).start()
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await work.answered
            except TimeoutError as e:
                raise JudgeError(f"{name} has not answered within {self._timeout_s:g} s", kind="timeout") from e
            finally:
                with self._lock:
                    work.forgotten = not work.done
                    self.hanging += work.forgotten

    def _finished(self, work: _Work) -> None:
        with self._lock:
            work.done = True
            self.hanging -= work.forgotten


class _Work:
    """One call on its way through a thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self.answered: asyncio.Future[Any] = self._loop.create_future()
        self.done = self.forgotten = False

    def do(self, finished: Callable[[_Work], None]) -> None:
        value: Any = None
        error: Exception | None = None
        try:
            value = self._call()
            if inspect.isawaitable(value):
                value = asyncio.run(_awaited(value))
        except (TimeoutError, StopIteration) as e:  # which would mean something else to who waits
            error = RuntimeError(f"{type(e).__name__}: {e}")
        except Exception as e:
            error = e
        except BaseException as e:  # SystemExit, KeyboardInterrupt: not this thread's to end the program with
            error = RuntimeError(f"{type(e).__name__}: {e}")
        finished(self)
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._settle, value, error)

    def _settle(self, value: Any, error: Exception | None) -> None:
        if self.answered.done():  # given up
            return
        if error is None:
            self.answered.set_result(value)
        else:
            self.answered.set_exception(error)


async def _awaited(value: Any) -> Any:
    return await value
