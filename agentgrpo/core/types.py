"""The data types that all other modules share. Standard library only.

Worked example, one search episode with one search and one answer (P = prompt tokens, A = sampled, E = injected):

    segments     P0 (user)   A0 (assistant, sampled)   E0 (tool)   A1 (assistant, sampled)
    token_ids  = P0 + A0 + E0 + A1        all tokens that the model saw, in order; each segment holds only its own
    loss_mask  = 0*|P0| 1*|A0| 0*|E0| 1*|A1|
    logprobs   = 0 where the mask is 0; log p(token | everything before it) at sampling where it is 1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate, chain, repeat, takewhile
from typing import Any, Literal, NamedTuple

Role = Literal["system", "user", "assistant", "tool"]


class Exit(StrEnum):
    """Why an episode ended: a closed vocabulary."""

    ANSWERED = "answered"
    """The policy gave a final answer that was accepted or forced."""
    MAX_TURNS = "max_turns"
    """The turn limit was reached without an answer."""
    SEARCH_LIMIT = "search_limit"
    """The search budget was spent without an answer."""
    FORMAT_ERROR_LIMIT = "format_error_limit"
    """Too many turns in a row held no action."""
    NO_ACTION = "no_action"
    """The policy stopped acting and no re-prompt was allowed."""
    CONTEXT_OVERFLOW = "context_overflow"
    """The next turn would not fit into the model's context."""
    TIMEOUT = "timeout"
    """The episode's own time limit (an infrastructure failure)."""
    ERROR = "error"
    """An infrastructure failure, described by Episode.failure."""


class FinishReason(StrEnum):
    """Why the engine stopped sampling one turn."""

    STOP = "stop"
    """A stop string or stop token was sampled; it is the last sampled token."""
    LENGTH = "length"
    """max_tokens or the context limit was reached."""


class Outcome(StrEnum):
    """How one tool or retriever call ended. Only INVALID_ARGS and TOOL_NOT_FOUND are the policy's fault."""

    SUCCESS = "success"
    INVALID_ARGS = "invalid_args"
    TIMEOUT = "timeout"
    RUNTIME_ERROR = "runtime_error"
    TOOL_NOT_FOUND = "tool_not_found"


class Piece(NamedTuple):
    """A stretch of text on its way into the context. Untrusted text (documents, questions, tool output) is encoded
    by a tokenizer that knows no added tokens, so that it can never spell a control token."""

    text: str
    trusted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    name: str
    arguments: Mapping[str, Any]
    id: str = ""
    """Id of the call, in model families that give calls an id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message in readable form; never re-tokenised once sampled."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    pieces: tuple[Piece, ...] = ()
    """`content` as trusted and untrusted pieces; () = all of it is untrusted."""

    @classmethod
    def of_pieces(cls, pieces: Sequence[Piece]) -> Message:
        """Return a user message of these pieces, for an environment's reply between turns."""
        return cls(role="user", content="".join(piece.text for piece in pieces), pieces=tuple(pieces))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem."""

    id: str
    messages: tuple[Message, ...]
    """Opening messages; the last user message is the question."""
    references: tuple[str, ...]
    """Acceptable answers."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the data set, unchanged (`kind`, `supporting` = ids of the passages that prove the answer, ...)."""
    data_source: str = ""
    is_messages: bool = False
    """Whether the data row holds a list of messages (even of one) instead of a text."""

    @property
    def is_chat(self) -> bool:
        return self.is_messages or len(self.messages) > 1

    @property
    def question(self) -> str:
        return next(m.content for m in reversed(self.messages) if m.role == "user")

    def apart(self) -> Task:
        """Return a copy with its own metadata, so that nobody else sees the changes of external code there."""
        return replace(self, metadata=deepcopy(self.metadata))


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One document returned by a retriever. `score` is None if the backend gives no score."""

    id: str
    text: str
    title: str = ""
    url: str = ""
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Contiguous tokens with one author. `sampled` is independent of the role."""

    role: Role
    token_ids: tuple[int, ...]
    sampled: bool
    """Whether it is a turn of the policy. A turn without log-probs is a demonstration: no policy has sampled it."""
    logprobs: tuple[float, ...] | None = None
    """log p of each token under the distribution it was sampled from."""
    policy_version: int | None = None
    """Updates that its sampling weights had completed; set iff logprobs is."""
    text: str = ""
    """Text for readers; never tokenised again."""
    cut_short: bool = False
    """Whether sampling ended at a token limit, not at a stop."""
    masked: bool = False
    """Whether it was sampled but is not trained."""
    end: str = ""
    """Spelling in `text` of the token that ended the turn."""
    grammar: str = ""
    """Grammar that the turn was held to while it was sampled; "" = no grammar."""
    acts: str = ""
    """Acts that the renderer has read in a turn, a letter each: T(hought), S(earch, or any other call), A(nswer). A
    reply to calls has I. "" = no renderer has read it."""

    def __post_init__(self) -> None:
        if (self.logprobs is None) != (self.policy_version is None) or (self.logprobs is not None and not self.sampled):
            raise ValueError("a Segment carries logprobs and policy_version together, and only if it was sampled")
        if self.logprobs is not None and len(self.logprobs) != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids)} sampled tokens but {len(self.logprobs)} logprobs")

    @property
    def content(self) -> str:
        """The text without its end."""
        return self.text.removesuffix(self.end)

    @property
    def is_trained(self) -> bool:
        """Whether its tokens have a gradient."""
        return self.sampled and not self.masked


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A sequence of Segments that forms one context."""

    segments: tuple[Segment, ...]
    seat: str = ""
    """The player or agent whose context it is; "" = the episode has one policy in one seat."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(chain.from_iterable(s.token_ids for s in self.segments))

    @property
    def loss_mask(self) -> tuple[int, ...]:
        return tuple(chain.from_iterable(repeat(int(s.is_trained), len(s.token_ids)) for s in self.segments))

    @property
    def logprobs(self) -> tuple[float, ...] | None:
        """Log-probs aligned with token_ids; 0.0 where the mask is 0. None if a turn was demonstrated."""
        if any(s.sampled and s.logprobs is None for s in self.segments):
            return None
        trained = ((s.is_trained and s.logprobs) or repeat(0.0, len(s.token_ids)) for s in self.segments)
        return tuple(chain.from_iterable(trained))

    @property
    def grammars(self) -> tuple[tuple[int, int, str], ...]:
        """As TrainingSample has them."""
        ends = accumulate(len(s.token_ids) for s in self.segments)
        pairs = zip(self.segments, ends, strict=True)
        return tuple(
            (end - len(s.token_ids), len(s.token_ids), s.grammar) for s, end in pairs if s.is_trained and s.grammar
        )

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens before the first sampled one."""
        before = takewhile(lambda s: not s.sampled, self.segments)
        return sum(len(s.token_ids) for s in before)

    @property
    def num_sampled_tokens(self) -> int:
        return sum(len(s.token_ids) for s in self.segments if s.sampled)

    @property
    def num_trained_tokens(self) -> int:
        return sum(len(s.token_ids) for s in self.segments if s.is_trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A citation of a labelled result: its passage id, the marker as written ("[R1Q1D2]") and the passage text."""

    doc_id: str
    marker: str
    text: str
    places: tuple[int, ...] = ()
    """Character offsets of its markers in Episode.answer, from which the markers are removed. A marker that opens a
    line stands before the text of that line, any other marker after the text that it supports. () = not known, as in
    records of older versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRecord:
    """One tool or retriever call as it happened."""

    name: str
    arguments: Mapping[str, Any]
    outcome: Outcome
    turn: int
    """Index in Episode.turns of the turn that made the call."""
    num_results: int = 0
    result_ids: tuple[str, ...] = ()
    cached: bool = False
    detail: str = ""
    num_bytes: int = 0
    """Size of the whole result, before it was cut to length."""
    was_cut: bool = False
    """Whether the policy was shown only its beginning."""
    cost: float = 0.0
    by_environment: bool = False
    """Whether the environment made the call by itself after that turn, without a request of the policy."""
    seconds: float = field(default=0.0, compare=False)
    """Wall time of the call. Clocks do not repeat, so it is recorded apart from the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An infrastructure failure as data: error class name, the stage it happened in, the message."""

    kind: str
    stage: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One complete attempt at a Task."""

    task: Task
    sample_index: int
    branches: tuple[Branch, ...]
    answer: str | None
    exit: Exit
    metrics: Mapping[str, float]
    """Counts and scores by name: a pure function of tokens and tool results, never a clock."""
    metrics_by_turn: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """For some metrics, the contribution of each of `turns`."""
    citations: tuple[Citation, ...] = ()
    retrieved_ids: tuple[str, ...] = ()
    """Ids of every distinct passage shown to the policy, in order."""
    tool_records: tuple[ToolRecord, ...] = ()
    memory: tuple[Mapping[str, Any], ...] = ()
    """JSON values that a memory agent wrote in each branch (environments.memory)."""
    environment: str = ""
    """Name of its environment."""
    turn_rewards: tuple[float, ...] = ()
    """Reward that the environment itself gave for each of `turns`; () = no such rewards."""
    outcome: Mapping[str, float | tuple[float, ...]] = field(default_factory=dict)
    """Result of Environment.score: by name a number, or one number for each of `turns`."""
    failure: Failure | None = None
    """Set iff the infrastructure failed; such an episode is never scored and never trained on."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds: time_generate, time_tools, time_queue. Kept apart from metrics because clocks do not repeat."""

    @property
    def turns(self) -> tuple[Segment, ...]:
        """The sampled segments of all branches in order, one for each turn."""
        return tuple(s for b in self.branches for s in b.segments if s.sampled)

    @property
    def seats(self) -> tuple[str, ...]:
        """The names of the seats that took a turn, in the order of their branches; () where seats have no names."""
        return tuple(dict.fromkeys(b.seat for b in self.branches if b.seat))

    @property
    def is_demonstrated(self) -> bool:
        """Whether its turns are a demonstration for the policy to imitate, which no policy has sampled."""
        return any(turn.logprobs is None for turn in self.turns)

    @property
    def is_truncated(self) -> bool:
        """Whether a token limit ended it, not the policy: its context was full, or the last trained turn of a branch
        was cut short. A turn with which another branch goes on does not count."""
        last = [next((s for s in reversed(b.segments) if s.is_trained), None) for b in self.branches]
        cut = {s.token_ids for s in last if s is not None and s.cut_short}
        if cut:
            cut -= {s.token_ids for b in self.branches for s in b.segments if not s.sampled and s.role == "assistant"}
        return self.exit is Exit.CONTEXT_OVERFLOW or bool(cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeGroup:
    """The group_size Episodes of one Task: the G of GRPO."""

    task: Task
    episodes: tuple[Episode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardResult:
    """The total, every term as it entered the total (weights, gates and scale applied), and the four dimensions."""

    total: float
    terms: Mapping[str, float]
    dimensions: Mapping[str, float]
    correctness: float
    """The judge's raw grade of the answer in [0, 1]; 0.0 for no answer."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """The grades that make up `correctness`, by name, if a judge grades by several criteria, and its counts, such as
    claims. Further numbers of a reward function are named TERM/NAME."""
    reason: str = ""
    """The judge's reason for its grade, and texts that reward functions gave beside their numbers."""
    turns: tuple[float, ...] = ()
    """The reward of each sampled turn (Episode.turns), adding up to total; () = the last turn gets the total."""
    branches: tuple[float, ...] = ()
    """The reward of each branch on its own tokens; () = total for every branch. `total` is their mean, except that a KL
    penalty (grpo.kl) reduces a branch by that of its own tokens, and total by the sum of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredGroup:
    """rewards[i] belongs to group.episodes[i]; None = could not be scored, which differs from 0."""

    group: EpisodeGroup
    rewards: tuple[RewardResult | None, ...]
    failures: tuple[Failure | None, ...] = ()
    """Reason why rewards[i] is None although the episode itself was fine (a judge failed)."""


CONSTANT_WITHIN = 1e-9
"""Rewards that differ by no more than this are equal."""


def has_zero_variance(rewards: Sequence[float | None]) -> bool:
    """Whether a group has zero variance: fewer than two scored rewards, or all of them equal."""
    scored = [r for r in rewards if r is not None]
    return len(scored) < 2 or max(scored) - min(scored) <= CONSTANT_WITHIN


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One flattened Branch with its advantage. All sequences have the same length.

    token_ids = P0+A0+E0+A1 ; loss_mask = 0*|P0| 1*|A0| 0*|E0| 1*|A1|
    rollout_logprobs = 0.0 where the mask is 0
    """

    group_id: str
    sample_index: int
    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    rollout_logprobs: tuple[float, ...] | None
    """Log-probs at sampling; None = a demonstration, which no policy has sampled."""
    advantage: float | tuple[float, ...]
    """The advantage of every loss token, or one value per token if turns differ (0.0 where the mask is 0)."""
    num_prompt_tokens: int
    """Length of the prefix that every sample of the group shares."""
    policy_version: int | None
    """Version of the oldest weights that sampled one of its tokens; None = no weights did."""
    grammars: tuple[tuple[int, int, str], ...] = ()
    """(first token, number of tokens, grammar) of each trained turn that was held to a grammar, in order."""

    def __post_init__(self) -> None:
        n, mask = len(self.token_ids), len(self.loss_mask)
        logprobs = n if self.rollout_logprobs is None else len(self.rollout_logprobs)
        if {mask, logprobs, len(self.token_advantages)} != {n}:
            raise ValueError(
                f"sample {self.group_id}/{self.sample_index}: {n} tokens, {mask} mask entries, {logprobs} logprobs, "
                f"{len(self.token_advantages)} advantages; they must be equally long"
            )

    @property
    def token_advantages(self) -> Sequence[float]:
        """One per token."""
        return self.advantage if isinstance(self.advantage, tuple) else (self.advantage,) * len(self.token_ids)
