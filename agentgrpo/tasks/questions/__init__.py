"""Question-answer sets as others publish them, and of the user's own, mixed."""

from agentgrpo.tasks.questions.dataset import QuestionSet, questions

__all__ = ["QuestionSet", "questions"]
