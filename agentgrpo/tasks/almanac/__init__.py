"""The almanac: a generated world of companies, products, people and cities to search in. Nothing is downloaded."""

from agentgrpo.tasks.almanac.dataset import Almanac
from agentgrpo.tasks.almanac.demonstrator import Habits
from agentgrpo.tasks.almanac.thesaurus import thesaurus

__all__ = ["Almanac", "Habits", "thesaurus"]
