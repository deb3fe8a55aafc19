"""An environment that is a directory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from agentgrpo.core.types import Message, Task

_QUESTION = Message(role="user", content="?")


@dataclass(frozen=True)
class Place:
    """Implements tools.base.Environment."""

    workspace: Path
    key: str = "test/0|task|0"
    task: Task = field(default_factory=lambda: Task(id="task", messages=(_QUESTION,), references=()))
