"""Conversations and documents of the user's own, and of published data sets, as tasks of a memory agent."""

from agentgrpo.tasks.memory_files.dataset import MemoryFiles

__all__ = ["MemoryFiles"]
