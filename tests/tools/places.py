"""A workspace that is a directory which is there already."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from agentgrpo.core.types import Message, Task
from agentgrpo.tools.resources import AttemptResources

_QUESTION = Message(role="user", content="?")
T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """Implements tools.base.Workspace; `await place.resources.close()` where a tool keeps something for it."""

    path: Path
    seed: str = "test/0|task|0"
    key: str = "test/0|task|0|0"
    task: Task = field(default_factory=lambda: Task(id="task", messages=(_QUESTION,), references=()))
    resources: AttemptResources = field(default_factory=lambda: AttemptResources("test"))

    @property
    def keeps_any(self) -> bool:
        return bool(self.resources)

    async def resource(self, owner: object, open: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        return await self.resources.get(owner, open)
