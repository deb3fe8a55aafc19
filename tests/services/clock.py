"""An event loop whose time passes only while it waits: hours in a moment, and the same each time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """late(): by how many seconds each wait ends too late, as on a busy machine."""

    def __init__(self, late: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__()
        self.now = 0.0
        selector: Any = self._selector  # type: ignore[attr-defined]
        select = selector.select

        def skip(timeout: float | None) -> Any:
            events = select(0)
            if not events and timeout is None:
                raise RuntimeError("the loop waits for nothing")
            if not events and timeout:
                self.now += timeout + late()
            return events

        selector.select = skip

    def time(self) -> float:
        return self.now
