"""The agent that searches before it answers."""

from agentgrpo.agents.search.actions import Planner
from agentgrpo.agents.search.agent import SearchAgent
from agentgrpo.agents.search.options import OnTurn
from agentgrpo.agents.search.tags import Tags

__all__ = ["OnTurn", "Planner", "SearchAgent", "Tags"]
