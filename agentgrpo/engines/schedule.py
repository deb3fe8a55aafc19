"""The schedule of the next engine step: places, waiting episodes, shared prompts. Pure bookkeeping without tensors.

Older episodes always have priority, so the oldest active turn always makes progress, whatever is scarce.

    place      slots and the KV budget; episodes without a place wait. A context keeps its place until `release`, or
               until another context needs it (eviction); its tokens are then recomputed later, in the same pieces.
    for room   to continue, a turn may evict idle contexts (least recently used first), then younger active turns,
               which wait again and keep their sampled tokens; if there are none, the turn pauses for this step
    to begin   a waiting episode may evict contexts that have been idle for about as long as recomputing them takes:
               then an eviction that is too early or too late costs at most twice the best choice. It is admitted only
               if every active turn could still grow once.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from agentgrpo.core.errors import EngineError
from agentgrpo.core.types import FinishReason
from agentgrpo.engines.base import Completion, SeedKey
from agentgrpo.engines.cache import CacheBudget, Context, KVCache, PromptKey, growth
from agentgrpo.engines.counters import EngineStats
from agentgrpo.engines.grammar import Matcher
from agentgrpo.engines.sampling import Distribution, Noise, StopRule

# --- One `generate` call on its way through the engine.


@dataclass(slots=True, eq=False)
class EngineTurn:
    """An active or waiting turn. tokens = the context, then the sampled tokens."""

    key: SeedKey
    tokens: list[int]
    max_total: int
    """Number of tokens at which the turn ends in any case."""
    distribution: Distribution
    noise: Noise
    stop: StopRule
    future: asyncio.Future[Completion]
    queued_at: float
    num_given: int
    opening: int = 0
    """Number of leading tokens shared with the contexts of other episodes."""
    held: Matcher | None = None
    """Matcher of the turn's grammar; None = the turn has no grammar."""
    started_at: float | None = None
    logprobs: list[float] = field(default_factory=list)
    context: Context = field(init=False)
    """Set when the turn is scheduled."""
    settled_before: int = 0
    """Tokens settled before the turn: the context returns to this state if the turn does not end well."""

    def take(self, token: int, logprob: float) -> FinishReason | None:
        """Add one sampled token and return the finish reason if it ends the turn."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.held is not None:
            self.held.take(token)
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


EpisodeKey = tuple[str, str, int]
TOKENS_PER_STEP = 128
"""Approximate number of tokens that can be recomputed in the time of a step without prefill."""


class WorkUnit(NamedTuple):
    """tokens[start:stop] of a turn. `single`: each token attends separately; `draws`: the last token draws the next
    one."""

    turn: EngineTurn
    start: int
    stop: int
    single: bool
    draws: bool


class Copy(NamedTuple):
    """The first `tokens` tokens of a cache are copied to a context's cache."""

    source: KVCache
    target: Context
    tokens: int


@dataclass(slots=True)
class Step:
    """The work of one step: first the copies, in order, then all units together. A turn that copies also has a unit,
    unless other turns used up the prefill budget."""

    copies: list[Copy] = field(default_factory=list)
    units: list[WorkUnit] = field(default_factory=list)

    @property
    def drawing(self) -> list[EngineTurn]:
        """The turns that draw a token in this step."""
        return [u.turn for u in self.units if u.draws]

    @property
    def contexts(self) -> list[Context]:
        """The contexts whose caches the step writes to."""
        return list(dict.fromkeys([c.target for c in self.copies] + [u.turn.context for u in self.units]))


class Schedule:
    def __init__(
        self,
        *,
        slots: int,
        prefill_budget: int,
        prefill_chunk: int,
        kv_budget: int | None,
        exact: bool,
        stats: EngineStats,
    ) -> None:
        """exact: an evicted context is recomputed in its original pieces; otherwise everything after its prompt is one
        span."""
        self._prefill_budget, self._chunk, self._exact, self._stats = prefill_budget, prefill_chunk, exact, stats
        self._memory = CacheBudget(slots=slots, budget=kv_budget)
        self._contexts: dict[EpisodeKey, Context] = {}
        self._turns: dict[EpisodeKey, EngineTurn] = {}
        self._active: dict[EpisodeKey, EngineTurn] = {}
        self._waiting: list[EngineTurn] = []
        self._lenders: dict[PromptKey, list[Context]] = {}
        self._starting: dict[PromptKey, Context] = {}
        self._age = self._clock = 0

    @property
    def turns(self) -> list[EngineTurn]:
        """The active and the waiting turns."""
        return list(self._turns.values())

    @property
    def active(self) -> list[EngineTurn]:
        """The turns that have a place."""
        return list(self._active.values())

    @property
    def num_contexts(self) -> int:
        """Number of episodes that have a place."""
        return len(self._memory.contexts)

    def turn(self, episode: EpisodeKey) -> EngineTurn | None:
        """Return the episode's active or waiting turn, if any."""
        return self._turns.get(episode)

    def add(self, turn: EngineTurn) -> None:
        episode = turn.key.episode
        if episode in self._turns:
            raise EngineError(
                f"episode {episode} is already generating; the turns of an episode come one after another"
            )
        context = self._contexts.get(episode)
        if context is None:
            self._age += 1
            context = self._contexts[episode] = Context(self._age, turn.key.group, self._chunk)
        before = context.shared
        context.follow(turn.tokens, turn.opening)
        self._withdraw(context, [key for key in before if key not in context.shared])
        turn.context, turn.settled_before = context, context.settled
        self._turns[episode] = turn
        if context.cache is None:
            insort(self._waiting, turn, key=_age)
        else:
            self._active[episode] = turn

    def end(self, turn: EngineTurn, *, well: bool) -> None:
        """End the turn (harmless if it has already ended). Unless it ended well, its context is restored to the state
        before the turn, so that a second try computes exactly what the first would have."""
        episode = turn.key.episode
        if self._turns.get(episode) is not turn:
            return
        del self._turns[episode]
        if self._active.pop(episode, None) is None:
            self._waiting.remove(turn)
        context = turn.context
        context.idle_since = self._clock
        shared = context.shared
        if not well:
            context.rewind(turn.settled_before)
        # turns that wait for its shared prefix may compute it themselves
        self._withdraw(context, [key for key in shared if context.cached < len(key.tokens)])
        if context.cache is None and context.settled == 0:
            del self._contexts[episode]

    def release(self, episode: EpisodeKey) -> None:
        """Forget the episode. Its turns must have ended."""
        context = self._contexts.pop(episode, None)
        if context is not None and context.cache is not None:
            self._withdraw(context, context.shared)
            self._memory.take(context)

    def evict(self, context: Context) -> None:
        """Free the context's keys and values; its active turn waits again."""
        turn = next((t for t in self._active.values() if t.context is context), None)
        if turn is not None:
            del self._active[turn.key.episode]
            insort(self._waiting, turn, key=_age)
        self._withdraw(context, context.shared)
        self._memory.take(context)
        self._stats.evictions += 1
        if not self._exact:
            context.forget_pieces()

    def next_step(self) -> Step:
        """Return the next step; it is empty if all remaining turns wait for contexts to have been idle long enough."""
        self._clock += 1
        self._admit()
        step = Step()
        ready = [t for t in sorted(self._active.values(), key=_age) if self._can_go_on(t, step)]
        self._add_pieces(step, ready)
        self._stats.peak_kv_tokens = max(self._stats.peak_kv_tokens, self._memory.tokens)
        return step

    def computed(self, step: Step) -> None:
        """Record that the step's forward pass is done: all of its tokens are cached."""
        self._stats.steps += 1
        for turn, start, stop, single, draws in step.units:
            context = turn.context
            again = max(0, min(stop, context.settled) - start)
            self._stats.replayed_tokens += again
            if single and draws and stop - start == 1:
                self._stats.decode_tokens += 1 - again
            else:
                self._stats.prefill_tokens += stop - start - again
            context.cached = stop
            context.settled = max(context.settled, stop)
            for key in context.shared:
                if start < len(key.tokens) <= stop:
                    self._withdraw(context, [key])
                    self._lenders.setdefault(key, []).append(context)

    # -- places

    def _admit(self) -> None:
        while self._waiting and self._find_place(self._waiting[0].context):
            turn = self._waiting.pop(0)
            self._active[turn.key.episode] = turn

    def _find_place(self, context: Context) -> bool:
        tokens = len(context.tokens)
        spare = sum(growth(t.context) for t in self._active.values())
        missing = self._memory.missing(context, tokens, spare=spare)
        idle = [c for c in self._idle() if c.age > context.age or self._long_idle(c)]
        while idle and (self._memory.full or missing > 0):
            if missing > sum(c.capacity for c in idle):
                return False
            missing -= idle[0].capacity
            self.evict(idle.pop(0))
        if self._memory.full or missing > 0:
            return False
        self._memory.give(context, tokens)
        return True

    def _long_idle(self, context: Context) -> bool:
        return (self._clock - context.idle_since) * TOKENS_PER_STEP >= context.cached

    def _idle(self) -> list[Context]:
        """Return the contexts that have a place but no turn, least recently used first."""
        busy = {t.context for t in self._active.values()}
        return sorted(self._memory.contexts - busy, key=lambda c: (c.idle_since, c.age))

    def _find_room(self, context: Context, tokens: int) -> bool:
        if tokens <= context.capacity:
            return True
        while self._memory.missing(context, tokens) > 0:
            idle = self._idle()
            victim = idle[0] if idle else max((t.context for t in self._active.values()), key=lambda c: c.age)
            if victim is context:
                return False
            self.evict(victim)
        self._memory.give(context, tokens)
        return True

    # -- pieces

    def _can_go_on(self, turn: EngineTurn, step: Step) -> bool:
        """Return whether the turn has room for its tokens and does not wait for another context to compute its next
        shared prefix. Copies shared prefixes that other contexts already have."""
        context = turn.context
        if context.cache is None or not self._find_room(context, len(turn.tokens)):  # None: just evicted
            return False
        missing = [key for key in context.shared if len(key.tokens) > context.cached]
        if not missing or context.cached not in (0, missing[0].opening):  # cached already, or computed by itself
            return True
        lent = next((key for key in reversed(missing) if key in self._lenders), None)
        rest = missing if lent is None else missing[missing.index(lent) + 1 :]
        if rest and self._starting.setdefault(rest[0], context) is not context:
            return False
        if lent is not None:
            self._copy(context, lent, step)
        return True

    def _copy(self, context: Context, lent: PromptKey, step: Step) -> None:
        """Copy a shared prefix from a context that has it; this includes all shorter shared prefixes."""
        step.copies.append(Copy(self._lenders[lent][0].held, context, len(lent.tokens)))
        for key in context.shared:
            if context.cached < len(key.tokens) <= len(lent.tokens):
                self._lenders.setdefault(key, []).append(context)
        self._stats.copied_tokens += len(lent.tokens) - context.cached
        context.cached = len(lent.tokens)
        context.settled = max(context.settled, context.cached)

    def _add_pieces(self, step: Step, turns: list[EngineTurn]) -> None:
        """Give every turn a piece, then a second one and so on, until the prefill budget is used up: a long prompt does
        not keep other turns from beginning. Decoded tokens cost nothing; at least one other piece is always
        computed."""
        budget = self._prefill_budget
        rounds = [(turn, turn.context.pieces()) for turn in turns]
        while rounds:
            going = []
            for turn, pieces in rounds:
                start, stop, single = next(pieces)
                draws = stop == len(turn.tokens)
                cost = 0 if draws and stop - start == 1 else stop - start
                if cost > max(0, budget) and budget < self._prefill_budget:
                    continue
                budget -= cost
                step.units.append(WorkUnit(turn, start, stop, single, draws))
                if not draws:
                    going.append((turn, pieces))
            rounds = going

    def _withdraw(self, context: Context, keys: Iterable[PromptKey]) -> None:
        """Remove the context as a lender or as the one computing these prefixes."""
        for key in keys:
            if self._starting.get(key) is context:
                del self._starting[key]
            lenders = self._lenders.get(key, [])
            if context in lenders:
                lenders.remove(context)
                if not lenders:
                    del self._lenders[key]


def _age(turn: EngineTurn) -> int:
    return turn.context.age
