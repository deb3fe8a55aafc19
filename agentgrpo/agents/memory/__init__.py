"""The agent that reads chunk after chunk and keeps a memory of them."""

from agentgrpo.agents.memory.agent import MemoryAgent

__all__ = ["MemoryAgent"]
