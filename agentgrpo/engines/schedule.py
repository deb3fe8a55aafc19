"""Who computes what in the next engine step: places, waiting episodes, shared prompts. Pure bookkeeping, no tensors.

Older episodes go first, everywhere: so the oldest turn under way always gets on, whatever is short.

    place      slots and the KV budget; episodes without a place wait. A context keeps its place until `release`, or
               until somebody else needs it (`evicted`); what it had is then computed again, piece by piece as before.
    for room   to go on, a turn may evict idle contexts (least recently used first), then younger turns under way, which
               wait again and keep what they sampled; if there are none it pauses for this step
    to begin   a waiting episode may evict contexts that have been idle for about as long as computing them again
               takes: then neither too early nor too late costs more than twice the best choice. It is let in only if
               everybody under way could still grow once.
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
    """tokens = the context, then what was sampled."""

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
    opening: int = 0
    """Tokens that other episodes' contexts open with too."""
    held: Matcher | None = None
    """By the turn's grammar, where it has one."""
    started_at: float | None = None
    logprobs: list[float] = field(default_factory=list)
    context: Context = field(init=False)
    """Given when the turn is scheduled."""
    settled_before: int = 0
    """Tokens settled before the turn: where its context returns to if the turn does not end well."""

    def take(self, token: int, logprob: float) -> FinishReason | None:
        """Add one sampled token; says how the turn ended, if it did."""
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
"""About as many tokens as are computed again in the time of a step without prefill."""


class WorkUnit(NamedTuple):
    """tokens[start:stop] of a turn; `single`: each attends by itself; `draws`: the last one draws the turn's next
    token."""

    turn: EngineTurn
    start: int
    stop: int
    single: bool
    draws: bool


class Copy(NamedTuple):
    """The first `tokens` of a cache go to a context's."""

    source: KVCache
    target: Context
    tokens: int


@dataclass(slots=True)
class Step:
    """What is computed together: first the copies, in order, then all units side by side. Whoever copies also computes
    something, unless others took all of the prefill budget."""

    copies: list[Copy] = field(default_factory=list)
    units: list[WorkUnit] = field(default_factory=list)

    @property
    def drawing(self) -> list[EngineTurn]:
        """The turns that draw a token from this step."""
        return [u.turn for u in self.units if u.draws]

    @property
    def contexts(self) -> list[Context]:
        """Whose caches the step writes to."""
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
        """exact: an evicted context is computed again as it was; else after its prompt in one span."""
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
        """Every turn that is under way or waits for a place."""
        return list(self._turns.values())

    @property
    def active(self) -> list[EngineTurn]:
        """Every turn that has a place."""
        return list(self._active.values())

    @property
    def num_contexts(self) -> int:
        """Episodes that have a place."""
        return len(self._memory.contexts)

    def turn(self, episode: EpisodeKey) -> EngineTurn | None:
        """The episode's turn, if one is under way or waits."""
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
        """The turn is over (harmless if it was already). Unless it ended well its context goes back to what it was
        before, so that a second try computes exactly what the first would have."""
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
        # whoever waits for what it shares may compute it
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
        """Give up its keys and values; a turn under way waits again."""
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
        """What to compute now; nothing if all that is left waits for contexts to have been idle long enough."""
        self._clock += 1
        self._admit()
        step = Step()
        ready = [t for t in sorted(self._active.values(), key=_age) if self._can_go_on(t, step)]
        self._add_pieces(step, ready)
        self._stats.peak_kv_tokens = max(self._stats.peak_kv_tokens, self._memory.tokens)
        return step

    def computed(self, step: Step) -> None:
        """The step's forward pass is done: all of its tokens are cached."""
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
        """Contexts with a place but without a turn, least recently used first."""
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
        """Has it room for its tokens, and is nobody else computing for it what comes next? Copies what others have."""
        context = turn.context
        if context.cache is None or not self._find_room(context, len(turn.tokens)):  # None: evicted a moment ago
            return False
        missing = [key for key in context.shared if len(key.tokens) > context.cached]
        if not missing or context.cached not in (0, missing[0].opening):  # has it, or is about to
            return True
        lent = next((key for key in reversed(missing) if key in self._lenders), None)
        rest = missing if lent is None else missing[missing.index(lent) + 1 :]
        if rest and self._starting.setdefault(rest[0], context) is not context:
            return False
        if lent is not None:
            self._copy(context, lent, step)
        return True

    def _copy(self, context: Context, lent: PromptKey, step: Step) -> None:
        """What it shares, from one who has it: then it has that as well, and all that this opens with."""
        step.copies.append(Copy(self._lenders[lent][0].held, context, len(lent.tokens)))
        for key in context.shared:
            if context.cached < len(key.tokens) <= len(lent.tokens):
                self._lenders.setdefault(key, []).append(context)
        self._stats.copied_tokens += len(lent.tokens) - context.cached
        context.cached = len(lent.tokens)
        context.settled = max(context.settled, context.cached)

    def _add_pieces(self, step: Step, turns: list[EngineTurn]) -> None:
        """A piece for everybody, then a second one, ... as long as the prefill budget lasts: a long prompt keeps nobody
        else from beginning. A token that decodes is free, and of the others at least one piece goes."""
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
        """The context no longer has these to share, and is not computing them."""
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
