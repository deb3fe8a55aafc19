"""What an environment is: one attempt's world. It gives the opening, answers turns, and knows how it ended.

    reset(task) -> Observation --policy--> Turn -> step(turn) -> Observation ... done -> score(episode) -> close()

One is made for every attempt, retries too, so nothing of a failed attempt is left. What is the same for all of them
(tokens, limits, records, the Episode) is rollout.loop's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from agentgrpo.core.messages import AnyCall, ToolReply, ToolSpec
from agentgrpo.core.types import Citation, Episode, Exit, FinishReason, Message, Task, ToolRecord

Scores: TypeAlias = Mapping[str, float | Sequence[float]]
"""name -> a number of the episode, or one for each of its turns; core.numbers says which names and numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the policy sampled, parsed. Where no tools are on offer, `content` is all of the text."""

    index: int
    """Of the episode, from 0."""
    text: str
    """As it was sampled, control tokens spelled out."""
    token_ids: tuple[int, ...]
    written: str = ""
    """The same without the token that ends it."""
    content: str = ""
    """The text without calls, reasoning and the token that ends it."""
    reasoning: str = ""
    calls: tuple[AnyCall, ...] = ()
    """Tool calls in the order written, malformed ones among them."""
    answer: str | None = None
    """A final answer, where the format has a way to give one."""
    finish_reason: FinishReason = FinishReason.STOP


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the environment says next, and whether it is over."""

    messages: Sequence[Message | ToolReply] = ()
    """Appended to the context, each by itself but for neighbouring replies; text is untrusted but for a Message's
    trusted pieces. What does not fit into the context ends the episode as context_overflow."""
    tools: Sequence[ToolSpec] | None = None
    """On offer from here on, where a context opens; None = turns are plain text."""
    done: Exit | None = None
    answer: str | None = None
    """The final answer, with `done`."""
    reward: float = 0.0
    """For the turn that this answers."""
    metrics: Scores = field(default_factory=dict)
    """What has been measured so far; the newest value of a name counts. One number per turn so far: the episode's
    metric is their sum."""
    fresh_context: bool = False
    """`messages` open a new Branch instead of going on with the last one."""
    repeats: Sequence[int] = ()
    """Turns of the episode with which a fresh context goes on behind its opening, token by token, each with what
    answered it in the last context; the newest is answered by `then` instead. They are trained where they were
    sampled."""
    then: Sequence[Message | ToolReply] = ()
    """Appended behind `repeats`."""
    shared_opening: int = 0
    """Tokens that this fresh context opens with and others too (SamplingParams.opening)."""
    seat: str = ""
    """The player or agent that takes the next turn. Each seat has a context of its own, which its first observation
    opens. A reward of `score` by the name reward/SEAT is that seat's (core.types.Branch.seat)."""
    is_last: bool = False
    """One turn more, and no other: the engine may forget the context once it is sampled."""
    calls: Sequence[ToolRecord] = ()
    """Made for the turn, for the records."""
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
        """What came of it, asked once, before `close`: hidden tests, end states, files."""
        ...

    async def close(self) -> None:
        """However it ended."""
        ...
