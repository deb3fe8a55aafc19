"""Tasks that can never be begun: their opening leaves no room for a turn in the context.

Only a text that is long enough for it is tokenised, so that a hundred thousand short tasks take a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from agentgrpo.core.types import Message, Task
from agentgrpo.rollout.loop import PolicyRunner

NAMED = 3
MOST = 10_000_000
"""Tokens of an opening that is counted to its end."""


class OverlongTasks(NamedTuple):
    num_tasks: int
    """Tasks that were looked at."""
    ids: tuple[str, ...]
    """Of those that are too long, in order."""
    longest: int
    """Tokens of the longest text's opening."""
    room: int
    """Tokens that an opening may have."""
    key: str
    """Of the setting that bounds a context."""
    held: int
    """Its value."""

    def others(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Those of `tasks` that can be begun."""
        left_out = frozenset(self.ids)
        return [task for task in tasks if task.id not in left_out] if left_out else tasks

    def line(self, what: str, outcome: str) -> str:
        """what: the tasks are called. outcome: what becomes of those that are too long."""
        more = f" and {len(self.ids) - NAMED} more" if len(self.ids) > NAMED else ""
        least = self.held - self.room
        less = f", less environment.min_context_left={least}," if least > 1 else ""
        return (
            f"{len(self.ids):,} of {self.num_tasks:,} {what} open with more than {self.room} tokens, the longest with "
            f"{self.longest}, and {self.key}={self.held}{less} leaves no room for a turn; {outcome}: "
            f"{', '.join(self.ids[:NAMED])}{more}. Raise {self.key}, or shorten them"
        )


def overlong(runner: PolicyRunner, tasks: Sequence[Task]) -> OverlongTasks:
    """Which of `tasks` these are, as far as it is known before an attempt."""
    held, limits, environment = runner.engine.max_context, runner.environment.limits, runner.environment
    key = "engine.max_context"
    if limits.max_context is not None and limits.max_context < held:
        held, key = limits.max_context, "environment.max_context"
    room = held - max(1, limits.min_context_left)

    def taken(task: Task, most: int = room) -> int:
        """0 where it is not known before an attempt."""
        return environment.opening_tokens(task, most=most) or 0

    # what stands around a message is at most all that a task opens with which says nothing
    frame = taken(_silent(tasks[0])) if tasks else 0
    # a token stands for a byte at least
    long = [task for task in tasks if frame and frame * max(1, len(task.messages)) + _num_bytes(task) > room]
    found = [task for task in long if taken(task) > room]
    longest = taken(max(found, key=_num_bytes), MOST) if found else 0
    return OverlongTasks(len(tasks), tuple(task.id for task in found), longest, room, key, held)


def _silent(task: Task) -> Task:
    return replace(task, messages=tuple(Message(role=m.role, content="?") for m in task.messages))


def _num_bytes(task: Task) -> int:
    calls = (str(call) for message in task.messages for call in message.tool_calls)
    return sum(len(text.encode("utf-8", "replace")) for text in (*(m.content for m in task.messages), *calls))
