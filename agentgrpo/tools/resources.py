"""What tools keep for one attempt alone: opened when first asked for, closed when the attempt is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar, cast

from agentgrpo.core.errors import ToolError

T = TypeVar("T")
_CLOSE_S = 30.0
_LOG = logging.getLogger(__name__)


class AttemptResources:
    """Of one attempt, which `attempt` names in messages; on one event loop."""

    def __init__(self, attempt: str) -> None:
        self._attempt = attempt
        self._kept: dict[int, _Kept[Any]] = {}
        self._is_over = False

    def __bool__(self) -> bool:
        return bool(self._kept)

    async def get(self, owner: object, open: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """See tools.base.Workspace.resource."""
        if self._is_over:
            raise ToolError(f"episode {self._attempt} is over: nothing is opened for it")
        found = cast("_Kept[T] | None", self._kept.get(id(owner)))
        if found is None or found.has_failed:
            found = self._kept[id(owner)] = _Kept(owner, open())
        return await found.opened()

    async def close(self) -> None:
        """Returns when all of it is closed, or has not been within half a minute."""
        self._is_over = True
        tasks = {kept.close() for kept in self._kept.values()}
        if not tasks:
            return
        _, open = await asyncio.wait(tasks, timeout=_CLOSE_S)
        for task in open:
            _LOG.error("episode %s: %s did not close within %g s", self._attempt, task.get_name(), _CLOSE_S)
            task.cancel()


class _Kept(Generic[T]):
    """Opened and closed in a task of its own: many context managers must be left where they were entered, and the calls
    that ask for one may be cancelled without any harm to it."""

    def __init__(self, owner: object, manager: AbstractAsyncContextManager[T]) -> None:
        loop = asyncio.get_running_loop()
        self._owner = owner  # or its id could become another's
        self._opened: asyncio.Future[T] = loop.create_future()
        self._opened.add_done_callback(lambda opened: opened.cancelled() or opened.exception())  # seen
        self._closing = asyncio.Event()
        self._task = loop.create_task(self._keep(manager), name=f"what {type(owner).__name__} keeps")

    @property
    def has_failed(self) -> bool:
        return self._opened.done() and (self._opened.cancelled() or self._opened.exception() is not None)

    async def opened(self) -> T:
        """Each who waits may give up alone. Raises what opening it raises."""
        return await asyncio.shield(self._opened)

    def close(self) -> asyncio.Task[None]:
        """The task to wait for. What is still being opened is given up."""
        self._closing.set()
        if not self._opened.done():
            self._task.cancel()
        return self._task

    async def _keep(self, manager: AbstractAsyncContextManager[T]) -> None:
        try:
            async with manager as value:
                self._opened.set_result(value)
                await self._closing.wait()
        except Exception as e:
            if self._opened.done():
                _LOG.warning("%s was not closed well: %s: %s", self._task.get_name(), type(e).__name__, e)
            else:
                self._opened.set_exception(e)
        finally:
            if not self._opened.done():
                self._opened.cancel()
