"""Tasks that can never be begun: their opening leaves no room for a turn in the context.

Only a text that is long enough for it is tokenised, so that a hundred thousand short tasks take a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentgrpo.core.types import Task
from agentgrpo.rollout.loop import PolicyRunner

NAMED = 3
MOST = 10_000_000
"""Tokens of an opening that is counted to its end."""


class OverlongTasks(NamedTuple):
    count: int
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

    def line(self, what: str, outcome: str) -> str:
        """what: the tasks are called. outcome: what becomes of those that are too long."""
        more = f" and {len(self.ids) - NAMED} more" if len(self.ids) > NAMED else ""
        least = self.held - self.room
        less = f", less environment.min_context_left={least}," if least > 1 else ""
        return (
            f"{len(self.ids):,} of {self.count:,} {what} open with more than {self.room} tokens, the longest with "
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
    found: list[Task] = []
    # what stands around a message: at most all that the shortest task opens with
    frame = environment.opening_tokens(min(tasks, key=_num_bytes), most=room) if tasks else None
    for task in tasks if frame is not None else ():
        at_most = frame * max(1, len(task.messages)) + _num_bytes(task)  # a token stands for a byte at least
        if at_most > room and (environment.opening_tokens(task, most=room) or 0) > room:
            found.append(task)
    longest = environment.opening_tokens(max(found, key=_num_bytes), most=MOST) or 0 if found else 0
    return OverlongTasks(len(tasks), tuple(task.id for task in found), longest, room, key, held)


def _num_bytes(task: Task) -> int:
    calls = (str(call) for message in task.messages for call in message.tool_calls)
    return sum(len(text.encode("utf-8", "replace")) for text in (*(m.content for m in task.messages), *calls))
