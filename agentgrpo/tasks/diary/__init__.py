"""The diary: a generated world of days that are read one at a time and asked about afterwards. Nothing is
downloaded."""

from agentgrpo.tasks.diary.dataset import Diaries
from agentgrpo.tasks.diary.demonstrator import Habits

__all__ = ["Diaries", "Habits"]
