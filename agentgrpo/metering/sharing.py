"""One piece of work that several wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """A waiter that is cancelled disturbs no other; with the last of them the work is stopped, and waited for."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.task = asyncio.get_running_loop().create_task(work)
        self.task.add_done_callback(_seen)
        self._waiters = 0
        self._is_given_up = False

    @property
    def is_over(self) -> bool:
        """Whoever comes now comes too late."""
        return self._is_given_up or self.task.done()

    async def wait(self) -> T:
        self._waiters += 1
        try:
            return await asyncio.shield(self.task)
        finally:
            self._waiters -= 1
            if not self._waiters and not self.task.done():
                self._is_given_up = True
                self.task.cancel()
                await asyncio.wait((self.task,))


def _seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # nobody may be left to ask for it
