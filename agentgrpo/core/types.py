"""The nouns of the one flow. Standard library only; every other module speaks in these.

Worked example, one search episode with one search and one answer (P = prompt tokens, A = sampled, E = injected):

    segments     P0 (user)   A0 (assistant, sampled)   E0 (tool)   A1 (assistant, sampled)
    token_ids  = P0 + A0 + E0 + A1        what the model saw, in order; each segment holds only what it adds
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
    """Of the model family's own, where it gives calls one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message as people see it; never re-tokenised once sampled."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    pieces: tuple[Piece, ...] = ()
    """`content` in stretches, some of them trusted; () = none of it is."""

    @classmethod
    def of_pieces(cls, pieces: Sequence[Piece]) -> Message:
        """What an environment says between turns, as a user message."""
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
    """The data set's own fields, untouched (`kind`, `supporting` = ids of the passages that prove the answer, ...)."""
    data_source: str = ""
    is_messages: bool = False
    """Its row has a list of messages where others have a text, be it of a single one."""

    @property
    def is_chat(self) -> bool:
        return self.is_messages or len(self.messages) > 1

    @property
    def question(self) -> str:
        return next(m.content for m in reversed(self.messages) if m.role == "user")

    def apart(self) -> Task:
        """The same with metadata of its own: what code from outside changes there, nobody else sees."""
        return replace(self, metadata=deepcopy(self.metadata))


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One document as a retriever returns it. `score` is None where the backend gives none."""

    id: str
    text: str
    title: str = ""
    url: str = ""
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Contiguous tokens with one author. `sampled` is a fact of its own, not derived from the role."""

    role: Role
    token_ids: tuple[int, ...]
    sampled: bool
    """It is the policy's turn. Without log-probs it was demonstrated: no policy has sampled it."""
    logprobs: tuple[float, ...] | None = None
    """log p of each token under the distribution it was sampled from."""
    policy_version: int | None = None
    """Completed updates of the weights that sampled it; given iff logprobs are."""
    text: str = ""
    """For readers. Never tokenised again."""
    cut_short: bool = False
    """It was sampled up to a limit of tokens, not to a stop."""
    masked: bool = False
    """It was sampled, and is not trained."""
    end: str = ""
    """How `text` spells the token that ended the turn."""
    grammar: str = ""
    """Held the turn while it was sampled; "" = the policy was free."""
    acts: str = ""
    """What its renderer read in a turn, a letter each: T(hought), S(earch, or any other call), A(nswer); I of what
    answers calls. "" = no renderer has read it."""

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
        """Its tokens have a gradient."""
        return self.sampled and not self.masked


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A run of Segments that is one context."""

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
        """Aligned with token_ids; 0.0 where the mask is 0. None where a turn of it was demonstrated."""
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
    """Where its markers stood in Episode.answer, which is without them: of each the number of characters before it. One
    that opens a line stands before the text of that line, any other behind what it proves. () = not known, as in
    records of older versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRecord:
    """One tool or retriever call as it happened."""

    name: str
    arguments: Mapping[str, Any]
    outcome: Outcome
    turn: int
    """Which of Episode.turns made the call, from 0."""
    num_results: int = 0
    result_ids: tuple[str, ...] = ()
    cached: bool = False
    detail: str = ""
    num_bytes: int = 0
    """Of the whole result, before it was cut to length."""
    was_cut: bool = False
    """The policy was shown only its beginning."""
    cost: float = 0.0
    by_environment: bool = False
    """The environment made it by itself, behind that turn: the policy did not ask for it."""
    seconds: float = field(default=0.0, compare=False)
    """A clock, so it is recorded apart from the rest."""


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
    """Of some metrics, what each of `turns` added to them."""
    citations: tuple[Citation, ...] = ()
    retrieved_ids: tuple[str, ...] = ()
    """Ids of every distinct passage shown to the policy, in order."""
    tool_records: tuple[ToolRecord, ...] = ()
    memory: tuple[Mapping[str, Any], ...] = ()
    """What a memory agent wrote in each branch (environments.memory), as JSON values."""
    environment: str = ""
    """Name of the environment it was an attempt in."""
    turn_rewards: tuple[float, ...] = ()
    """What the environment itself paid for each of `turns`; () = nothing."""
    outcome: Mapping[str, float | tuple[float, ...]] = field(default_factory=dict)
    """What Environment.score returned: a number, or one for each of `turns`, by name."""
    failure: Failure | None = None
    """Set iff the infrastructure failed; such an episode is never scored and never trained on."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds: time_generate, time_tools, time_queue. Kept apart from metrics because clocks do not repeat."""

    @property
    def turns(self) -> tuple[Segment, ...]:
        """What the policy sampled, in order: a turn each, over all branches."""
        return tuple(s for b in self.branches for s in b.segments if s.sampled)

    @property
    def seats(self) -> tuple[str, ...]:
        """The names of the seats that took a turn, in the order of their branches; () where seats have no names."""
        return tuple(dict.fromkeys(b.seat for b in self.branches if b.seat))

    @property
    def is_demonstrated(self) -> bool:
        """Its turns were given, for the policy to imitate: no policy has sampled them."""
        return any(turn.logprobs is None for turn in self.turns)

    @property
    def is_truncated(self) -> bool:
        """Tokens ended it, not the policy: its context was full, or a limit cut the last turn of a branch short, masked
        ones left out, and those with which another branch goes on."""
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
    """total and every term as it entered the total (weights, gates and scale applied), plus the four dimensions."""

    total: float
    terms: Mapping[str, float]
    dimensions: Mapping[str, float]
    correctness: float
    """The judge's raw grade of the answer in [0, 1]; 0.0 for no answer."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """The grades that `correctness` is made of, by name, where a judge grades by several criteria; and what it counted
    on the way, such as claims. Further numbers of a reward function are TERM/NAME."""
    reason: str = ""
    """What the judge gave as the reason for its grade, and texts that reward functions gave beside their numbers."""
    turns: tuple[float, ...] = ()
    """What each sampled turn brought (Episode.turns), adding up to total; () = all of it came with the last one."""
    branches: tuple[float, ...] = ()
    """The reward of each branch on its own tokens, total their mean (less KL, where each pays for its own tokens alone:
    grpo.kl); () = total for every branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredGroup:
    """rewards[i] belongs to group.episodes[i]; None = could not be scored, which is never the same as 0."""

    group: EpisodeGroup
    rewards: tuple[RewardResult | None, ...]
    failures: tuple[Failure | None, ...] = ()
    """Why rewards[i] is None where the episode itself was fine (a judge failed)."""


CONSTANT_WITHIN = 1e-9
"""Rewards that differ by no more than this are equal."""


def has_zero_variance(rewards: Sequence[float | None]) -> bool:
    """Whether a group's rewards say nothing of any episode: fewer than two scored rewards, or all of them equal."""
    scored = [r for r in rewards if r is not None]
    return len(scored) < 2 or max(scored) - min(scored) <= CONSTANT_WITHIN


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One Branch flattened, with its advantage. Its sequences are equally long.

    token_ids = P0+A0+E0+A1 ; loss_mask = 0*|P0| 1*|A0| 0*|E0| 1*|A1|
    rollout_logprobs = 0.0 where the mask is 0
    """

    group_id: str
    sample_index: int
    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    rollout_logprobs: tuple[float, ...] | None
    """None = demonstrated: no policy has sampled it."""
    advantage: float | tuple[float, ...]
    """The credit of every loss token, or one for each token where turns have their own (0.0 where the mask is 0)."""
    num_prompt_tokens: int
    """Length of the prefix that every sample of the group shares."""
    policy_version: int | None
    """Of the oldest weights that sampled a token of it; None = none has."""
    grammars: tuple[tuple[int, int, str], ...] = ()
    """(first token, number of tokens, grammar) of each trained turn that was held to one, in order."""

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
