"""Where an episode first goes another way than its record, and the parts of a record that are held against others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from agentgrpo.core.types import Branch, Message, Segment, Task, ToolCall
from agentgrpo.records.trajectories import TrajectoryRecord

Kind = Literal["token", "logprob", "length", "prompt", "tool", "answer", "exit", "reward"]
Decode = Callable[[Sequence[int]], str]
AROUND = 60
"""Characters shown on either side of a spot."""
CUT = "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where an episode first goes another way than its record."""

    episode: str
    kind: Kind
    branch: int | None = None
    turn: int | None = None
    """Of the episode's sampled turns, from 0: the one that differs, or after which something else does."""
    token: int | None = None
    """Of the turn, or of what stands between two turns, from 0."""
    character: int | None = None
    """Of the text of the turn, or of what stands between two turns, from 0: where the token begins, or else the first
    that differs."""
    expected: Any = None
    """As recorded: a token id, a log-prob, a number of tokens, an answer, an exit, a value."""
    found: Any = None
    expected_text: str = ""
    """Around the spot."""
    found_text: str = ""
    expected_logprob: float | None = None
    found_logprob: float | None = None
    call: Mapping[str, Any] | None = None
    """{"name","arguments"} of the call whose reply differs, where it is known which of its turn."""
    calls: Sequence[Mapping[str, Any]] = ()
    """Those of the turn."""
    term: str | None = None
    """Of the reward."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class ReplayedTurn(NamedTuple):
    """A sampled segment, and all that stood before it in its branch."""

    branch: int
    number: int
    """In the episode, from 0."""
    context: tuple[int, ...]
    said: Segment


def turns_of(branches: Sequence[Branch]) -> Iterator[ReplayedTurn]:
    number = 0
    for index, branch in enumerate(branches):
        context: tuple[int, ...] = ()
        for segment in branch.segments:
            if segment.sampled:
                yield ReplayedTurn(index, number, context, segment)
                number += 1
            context += segment.token_ids


def task_of(record: TrajectoryRecord) -> Task:
    """As it was recorded."""
    messages = tuple(
        Message(
            role=m["role"],
            content=m["content"],
            tool_calls=tuple(ToolCall(name=c["name"], arguments=c["arguments"]) for c in m.get("tool_calls", ())),
        )
        for m in record.prompt_messages
    )
    return Task(
        id=record.task,
        messages=messages,
        references=tuple(record.references),
        metadata=record.metadata,
        data_source=record.data_source,
    )


def around(text: str, at: int) -> str:
    """What stands there, with CUT where it is cut."""
    low, high = max(0, at - AROUND), at + AROUND
    return f"{CUT if low else ''}{text[low:high]}{CUT if high < len(text) else ''}"
