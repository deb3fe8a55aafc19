"""A workspace that is a directory which is there already."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from agentgrpo.core.types import Message, Task

_QUESTION = Message(role="user", content="?")


@dataclass(frozen=True)
class Place:
    """Implements tools.base.Workspace."""

    path: Path
    seed: str = "test/0|task|0"
    key: str = "test/0|task|0|0"
    task: Task = field(default_factory=lambda: Task(id="task", messages=(_QUESTION,), references=()))
