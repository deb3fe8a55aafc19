"""Per-attempt resources of tools: opened on first use, closed when the attempt is over."""

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
    """The resources of one attempt, on one event loop. `attempt` names it in messages."""

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
        """Close all resources; returns after half a minute even if some are still open."""
        self._is_over = True
        tasks = {kept.close() for kept in self._kept.values()}
        if not tasks:
            return
        _, open = await asyncio.wait(tasks, timeout=_CLOSE_S)
        for task in open:
            _LOG.error("episode %s: %s did not close within %g s", self._attempt, task.get_name(), _CLOSE_S)
            task.cancel()


class _Kept(Generic[T]):
    """Opens and closes a context manager in its own asyncio task: many must be left in the task that entered them, and
    a cancelled call must not harm the resource."""

    def __init__(self, owner: object, manager: AbstractAsyncContextManager[T]) -> None:
        loop = asyncio.get_running_loop()
        self._owner = owner  # seen
        self._opened: asyncio.Future[T] = loop.create_future()
        self._opened.add_done_callback(lambda opened: opened.cancelled() or opened.exception())  # seen
        self._closing = asyncio.Event()
        self._task = loop.create_task(self._keep(manager), name=f"what {type(owner).__name__} keeps")

    @property
    def has_failed(self) -> bool:
        return self._opened.done() and (self._opened.cancelled() or self._opened.exception() is not None)

    async def opened(self) -> T:
        """Wait until the resource is open; a cancelled waiter does not affect others. Raises any error that opening
        raises.
        """
        return await asyncio.shield(self._opened)

    def close(self) -> asyncio.Task[None]:
        """Return the task to wait for. An opening still in progress is cancelled."""
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
