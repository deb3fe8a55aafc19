"""No judge of entries."""

from __future__ import annotations

from collections.abc import Sequence

from agentgrpo.memory.base import Change, ChunkVerdict
from agentgrpo.types import Task


class NoValidity:
    """Nothing is judged, and nobody knows what is wanted."""

    async def judge(self, task: Task, chunk: int, changes: Sequence[Change]) -> ChunkVerdict:
        return ChunkVerdict(judged=0, valid=0)

    async def close(self) -> None:
        """Nothing is open."""
