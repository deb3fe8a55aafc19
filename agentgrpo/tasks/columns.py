"""A task as a row of its file."""

from __future__ import annotations

from typing import Any

from agentgrpo.core.types import Task


def columns_of(task: Task) -> dict[str, Any]:
    """A task as a row of its file, without its metadata."""
    return {
        "prompt": [{"role": m.role, "content": m.content} for m in task.messages],
        "question": next((m.content for m in reversed(task.messages) if m.role == "user"), ""),
        "references": list(task.references),
        "answers": list(task.references),
        "answer": task.references[0] if task.references else "",
        "id": task.id,
        "data_source": task.data_source,
    }
