"""The agent that calls tools before it answers."""

from agentgrpo.agents.tool.agent import ToolAgent

__all__ = ["ToolAgent"]
