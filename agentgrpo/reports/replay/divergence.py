"""The first difference between an episode and its record, and the recorded turns to compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from agentgrpo.core.types import Branch, Message, Segment, Task, ToolCall
from agentgrpo.records.trajectories import TrajectoryRecord

Kind = Literal["token", "logprob", "length", "prompt", "tool", "answer", "exit", "reward"]
Decode = Callable[[Sequence[int]], str]
AROUND = 60
"""Characters shown on either side of a position."""
CUT = "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first difference between an episode and its record."""

    episode: str
    kind: Kind
    branch: int | None = None
    turn: int | None = None
    """Index of a sampled turn in the episode, from 0: the turn that differs, or the last turn before the difference."""
    token: int | None = None
    """Token index from 0, within the turn or within the text between two turns."""
    character: int | None = None
    """Character index from 0, within the turn's text or the text between two turns: the start of the token, or else the
    first differing character."""
    expected: Any = None
    """The recorded token id, log-prob, number of tokens, answer, exit or value."""
    found: Any = None
    expected_text: str = ""
    """The recorded text around the position."""
    found_text: str = ""
    expected_logprob: float | None = None
    found_logprob: float | None = None
    call: Mapping[str, Any] | None = None
    """{"name","arguments"} of the call whose reply differs, if the call is known."""
    calls: Sequence[Mapping[str, Any]] = ()
    """Every call of the turn."""
    term: str | None = None
    """Name of the reward term."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class ReplayedTurn(NamedTuple):
    """A sampled segment, with all earlier tokens of its branch."""

    branch: int
    number: int
    """Index in the episode, from 0."""
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
    """The task as it was recorded."""
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
    """The text around the position, with CUT at each end that is cut."""
    low, high = max(0, at - AROUND), at + AROUND
    return f"{CUT if low else ''}{text[low:high]}{CUT if high < len(text) else ''}"
