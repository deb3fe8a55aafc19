"""Tasks that can never begin, because their opening leaves no room in the context for a turn.

Only texts long enough to be too long are tokenised, so that checking a hundred thousand short tasks takes a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from agentgrpo.core.types import Message, Task
from agentgrpo.rollout.loop import PolicyRunner

NAMED = 3
MOST = 10_000_000
"""Maximum number of tokens up to which an opening is counted exactly."""


class OverlongTasks(NamedTuple):
    num_tasks: int
    """Number of tasks checked."""
    ids: tuple[str, ...]
    """Ids of the overlong tasks, in order."""
    longest: int
    """Number of tokens in the opening of the longest text."""
    room: int
    """Maximum number of tokens of an opening."""
    key: str
    """Name of the setting that limits the context."""
    held: int
    """Value of that setting."""

    def others(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Return the `tasks` that can begin."""
        left_out = frozenset(self.ids)
        return [task for task in tasks if task.id not in left_out] if left_out else tasks

    def line(self, what: str, outcome: str) -> str:
        """Describe the overlong tasks in one line. what: a name for the tasks. outcome: what happens to the overlong
        ones."""
        more = f" and {len(self.ids) - NAMED} more" if len(self.ids) > NAMED else ""
        least = self.held - self.room
        less = f", less environment.min_context_left={least}," if least > 1 else ""
        return (
            f"{len(self.ids):,} of {self.num_tasks:,} {what} open with more than {self.room} tokens, the longest with "
            f"{self.longest}, and {self.key}={self.held}{less} leaves no room for a turn; {outcome}: "
            f"{', '.join(self.ids[:NAMED])}{more}. Raise {self.key}, or shorten them"
        )


def overlong(runner: PolicyRunner, tasks: Sequence[Task]) -> OverlongTasks:
    """Find the overlong `tasks`, as far as this can be known before an attempt."""
    held, limits, environment = runner.engine.max_context, runner.environment.limits, runner.environment
    key = "engine.max_context"
    if limits.max_context is not None and limits.max_context < held:
        held, key = limits.max_context, "environment.max_context"
    room = held - max(1, limits.min_context_left)

    def taken(task: Task, most: int = room) -> int:
        """Return the number of tokens of the opening; 0 if it is not known before an attempt."""
        return environment.opening_tokens(task, most=most) or 0

    # the tokens added around one message are at most those of an opening with one-character messages
    frame = taken(_silent(tasks[0])) if tasks else 0
    # a token is at least one byte
    long = [task for task in tasks if frame and frame * max(1, len(task.messages)) + _num_bytes(task) > room]
    found = [task for task in long if taken(task) > room]
    longest = taken(max(found, key=_num_bytes), MOST) if found else 0
    return OverlongTasks(len(tasks), tuple(task.id for task in found), longest, room, key, held)


def _silent(task: Task) -> Task:
    return replace(task, messages=tuple(Message(role=m.role, content="?") for m in task.messages))


def _num_bytes(task: Task) -> int:
    calls = (str(call) for message in task.messages for call in message.tool_calls)
    return sum(len(text.encode("utf-8", "replace")) for text in (*(m.content for m in task.messages), *calls))
