"""Who computes what in the next engine step: slots, waiting episodes, shared prompts. Pure bookkeeping, no tensors.

What is computed for an episode, and in which shape, depends on the episode alone, never on who else is there or when:

    first turn    prompt[:-1] as one span (once per group, the others copy it), then its last token as a decoding row
    later turns   the last sampled token and all that was injected after it as one span; alone, it is a decoding row
    in between    one decoding row per sampled token

A slot belongs to its episode until `release`; episodes beyond the last slot wait in order of arrival.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from agentgrpo.engines.base import Completion, SeedKey
from agentgrpo.engines.sampling import Distribution, Noise
from agentgrpo.engines.stops import StopRule
from agentgrpo.errors import EngineError
from agentgrpo.types import FinishReason

EpisodeKey = tuple[str, str, int]
PromptKey = tuple[tuple[str, str], tuple[int, ...]]
"""(group, prompt tokens but the last)."""


@dataclass(slots=True, eq=False)
class Context:
    """What one episode keeps between its turns: the first `cached` of `tokens` are in the slot."""

    slot: int
    tokens: list[int] = field(default_factory=list)
    cached: int = 0
    prompt: PromptKey | None = None
    """The shared prompt this slot holds, from which other episodes of the group may copy."""


@dataclass(slots=True, eq=False)
class Turn:
    """One `generate` call. tokens = the context, then what was sampled."""

    key: SeedKey
    tokens: list[int]
    max_total: int
    """Tokens at which the turn ends in any case."""
    distribution: Distribution
    noise: Noise
    stop: StopRule
    future: asyncio.Future[Completion]
    queued_at: float
    num_given: int
    started_at: float | None = None
    logprobs: list[float] = field(default_factory=list)
    context: Context | None = None
    cached_before: int = 0
    """Tokens cached before the turn: where its context returns to if the turn does not end well."""

    @property
    def held(self) -> Context:
        assert self.context is not None, "a turn without a slot was scheduled"
        return self.context

    def take(self, token: int, logprob: float) -> FinishReason | None:
        """Add one sampled token; says how the turn ended, if it did."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.stop.ends(self.tokens, self.num_given):
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.tokens) >= self.max_total else None

    def finish(self, reason: FinishReason, policy_version: int, now: float) -> None:
        started_at = self.queued_at if self.started_at is None else self.started_at
        if not self.future.done():
            self.future.set_result(
                Completion(
                    token_ids=tuple(self.tokens[self.num_given :]),
                    logprobs=tuple(self.logprobs),
                    finish_reason=reason,
                    policy_version=policy_version,
                    time_queue=started_at - self.queued_at,
                    time_generate=now - started_at,
                )
            )

    def fail(self, error: EngineError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Span(NamedTuple):
    """tokens[start:stop] of a turn in one piece; `sampled`: its last row draws the turn's next token."""

    turn: Turn
    start: int
    stop: int
    sampled: bool


class Copy(NamedTuple):
    """The first `tokens` of slot `source` go to `targets`."""

    source: int
    targets: list[int]
    tokens: int


class Step(NamedTuple):
    copies: list[Copy]
    decoding: list[Turn]
    """One row each: the last token of the turn."""
    spans: list[Span]

    @property
    def turns(self) -> list[Turn]:
        return [*self.decoding, *(s.turn for s in self.spans)]

    @property
    def drawing(self) -> list[Turn]:
        """The turns that draw a token from this step."""
        return [*self.decoding, *(s.turn for s in self.spans if s.sampled)]


class Schedule:
    def __init__(self, *, slots: int, prefill_budget: int) -> None:
        self._prefill_budget = prefill_budget
        self._free = list(range(slots))[::-1]
        self._contexts: dict[EpisodeKey, Context] = {}
        self._active: dict[EpisodeKey, Turn] = {}
        self._waiting: dict[EpisodeKey, Turn] = {}
        self._holders: dict[PromptKey, list[Context]] = {}

    @property
    def turns(self) -> list[Turn]:
        """Every turn that is going on or waits for a slot."""
        return [*self._active.values(), *self._waiting.values()]

    def turn(self, episode: EpisodeKey) -> Turn | None:
        """The episode's turn, if one is going on or waits."""
        return self._active.get(episode) or self._waiting.get(episode)

    @property
    def active(self) -> list[Turn]:
        """Every turn that has a slot."""
        return list(self._active.values())

    @property
    def has_work(self) -> bool:
        return bool(self._active or (self._waiting and self._free))

    @property
    def num_contexts(self) -> int:
        """Episodes that hold a slot."""
        return len(self._contexts)

    def add(self, turn: Turn) -> None:
        episode = turn.key.episode
        if self.turn(episode) is not None:
            raise EngineError(
                f"episode {episode} is already generating; the turns of an episode come one after another"
            )
        context = self._contexts.get(episode)
        if context is None:
            self._waiting[episode] = turn
        else:
            self._begin(turn, context)

    def _begin(self, turn: Turn, context: Context) -> None:
        """Keep of the slot what the turn's context repeats; its last token is always computed anew."""
        kept = min(context.cached, len(turn.tokens) - 1)
        if context.tokens[:kept] != turn.tokens[:kept]:
            kept = next(i for i, (a, b) in enumerate(zip(context.tokens, turn.tokens, strict=False)) if a != b)
        self._rewind(context, kept)
        context.tokens = turn.tokens
        turn.context, turn.cached_before = context, kept
        self._active[turn.key.episode] = turn

    def _rewind(self, context: Context, cached: int) -> None:
        context.cached = cached
        if context.prompt is not None and cached < len(context.prompt[1]):
            holders = self._holders[context.prompt]
            holders.remove(context)
            if not holders:
                del self._holders[context.prompt]
            context.prompt = None

    def end(self, turn: Turn, *, well: bool) -> None:
        """The turn is over (harmless if it was already). Unless it ended well its context goes back to what it was
        before, so that a second try computes exactly what the first would have."""
        episode = turn.key.episode
        if self._waiting.get(episode) is turn:
            del self._waiting[episode]
        elif self._active.get(episode) is turn:
            del self._active[episode]
            if not well:
                self._rewind(turn.held, turn.cached_before)

    def release(self, episode: EpisodeKey) -> int | None:
        """Free the episode's slot and return it, if it has one. Its turns must have ended."""
        context = self._contexts.pop(episode, None)
        if context is None:
            return None
        self._rewind(context, 0)
        self._free.append(context.slot)
        return context.slot

    def next_step(self) -> Step:
        """Every turn that can decode, and spans in order of arrival up to the prefill budget (at least one)."""
        while self._waiting and self._free:
            episode, turn = next(iter(self._waiting.items()))
            del self._waiting[episode]
            context = self._contexts[episode] = Context(self._free.pop())
            self._begin(turn, context)
        decoding: list[Turn] = []
        spans: list[Span] = []
        copies: dict[PromptKey, Copy] = {}
        starting: set[PromptKey] = set()
        budget = self._prefill_budget
        for turn in self._active.values():
            context = turn.held
            prompt = None
            if context.cached == 0 and len(turn.tokens) > 1:
                prompt = (turn.key.group, tuple(turn.tokens[:-1]))
                if prompt in starting:
                    continue
                self._share(prompt, context, copies)
            missing = len(turn.tokens) - context.cached
            if missing == 1:
                decoding.append(turn)
            elif missing <= budget or not spans:
                first = context.cached == 0
                budget -= missing
                spans.append(Span(turn, context.cached, len(turn.tokens) - first, not first))
                if prompt is not None:
                    starting.add(prompt)
        return Step(list(copies.values()), decoding, spans)

    def _share(self, prompt: PromptKey, context: Context, copies: dict[PromptKey, Copy]) -> None:
        """Copy the prompt from an episode of the group that has it, if one has."""
        holders = self._holders.get(prompt)
        if holders:
            tokens = len(prompt[1])
            copies.setdefault(prompt, Copy(holders[0].slot, [], tokens)).targets.append(context.slot)
            self._hold(prompt, context)
            context.cached = tokens

    def _hold(self, prompt: PromptKey, context: Context) -> None:
        context.prompt = prompt
        self._holders.setdefault(prompt, []).append(context)

    def computed(self, step: Step) -> None:
        """The step's forward pass is done: all of its tokens are cached."""
        for turn in step.decoding:
            turn.held.cached += 1
        for span in step.spans:
            context = span.turn.held
            context.cached = span.stop
            if span.start == 0:
                self._hold((span.turn.key.group, tuple(span.turn.tokens[: span.stop])), context)
