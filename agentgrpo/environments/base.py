"""The environment protocol: the world of one attempt. It gives the opening, answers turns, and knows how the attempt
ended.

    reset(task) -> Observation --policy--> Turn -> step(turn) -> Observation ... done -> score(episode) -> close()

Every attempt gets a new environment, retries too, so that nothing of a failed attempt is left. rollout.loop does the
work common to all environments (tokens, limits, records, the Episode).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from agentgrpo.core.messages import AnyCall, ToolReply, ToolSpec
from agentgrpo.core.types import Citation, Episode, Exit, FinishReason, Message, Task, ToolRecord

Scores: TypeAlias = Mapping[str, float | Sequence[float]]
"""name -> a number for the episode, or one for each of its turns; core.numbers defines the allowed names and
numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The policy's sampled turn, parsed. If no tools are offered, `content` is the whole text."""

    index: int
    """Number of the turn in the episode, from 0."""
    text: str
    """The sampled text, with control tokens spelled out."""
    token_ids: tuple[int, ...]
    written: str = ""
    """`text` without its end token."""
    content: str = ""
    """`text` without calls, reasoning and the end token."""
    reasoning: str = ""
    calls: tuple[AnyCall, ...] = ()
    """Tool calls in the order written, including malformed ones."""
    answer: str | None = None
    """The final answer, if the format can express one."""
    finish_reason: FinishReason = FinishReason.STOP


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The environment's next messages, and whether the attempt is over."""

    messages: Sequence[Message | ToolReply] = ()
    """Appended to the context, each separately, but adjacent tool replies together. Text is untrusted except a
    Message's trusted pieces. A message that does not fit into the context ends the episode as context_overflow."""
    tools: Sequence[ToolSpec] | None = None
    """The tools of a context that opens here; None = turns are plain text."""
    done: Exit | None = None
    answer: str | None = None
    """The final answer, with `done`."""
    reward: float = 0.0
    """The reward of the turn that this observation answers."""
    metrics: Scores = field(default_factory=dict)
    """Metrics so far; the newest value of a name counts. A sequence has one number per turn so far, and its sum is the
    episode's metric."""
    fresh_context: bool = False
    """`messages` open a new Branch instead of continuing the last one."""
    repeats: Sequence[int] = ()
    """Turns of the episode that a fresh context repeats after its opening, token by token, each with its answer in the
    last context; the newest is answered by `then` instead. They are trained where they were sampled."""
    then: Sequence[Message | ToolReply] = ()
    """Appended after `repeats`."""
    shared_opening: int = 0
    """Number of opening tokens that this fresh context shares with others (SamplingParams.opening)."""
    seat: str = ""
    """The player or agent that takes the next turn. Each seat has its own context, which its first observation opens. A
    score named reward/SEAT is that seat's reward (core.types.Branch.seat)."""
    is_last: bool = False
    """The next turn is the last: the engine may forget the context once it is sampled."""
    calls: Sequence[ToolRecord] = ()
    """The calls made for the turn, for the records."""
    shown: Sequence[str] = ()
    """Ids of all passages that the policy will have seen with these messages."""
    citations: Sequence[Citation] = ()
    notes: Sequence[Mapping[str, object]] = ()
    """JSON values for the records (Episode.memory)."""


class Environment(Protocol):
    async def reset(self, task: Task) -> Observation:
        """The opening messages and the tools on offer."""
        ...

    async def step(self, turn: Turn) -> Observation:
        """The answer to one turn. An infrastructure failure raises an EpisodeError."""
        ...

    async def score(self, episode: Episode) -> Scores:
        """Score the attempt, for example by hidden tests, end states or files. Called once, before `close`."""
        ...

    async def close(self) -> None:
        """Release everything that the attempt holds; called however it ended."""
        ...
