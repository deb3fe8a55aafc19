"""The workshop: a generated world of small problems to solve with tools. Nothing is downloaded."""

from agentgrpo.tasks.workshop.dataset import Workshop
from agentgrpo.tasks.workshop.demonstrator import Habits

__all__ = ["Habits", "Workshop"]
