"""Who has a place and who gives it up: by hand, and over many random steps. No tensors."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from agentgrpo.engines.cache import KVCache, bucketed
from agentgrpo.engines.schedule import TOKENS_PER_STEP, EngineTurn, Schedule, Step
from tests.engines.test_schedule import hand_out, run, scheduled, shape, turn
from tests.thorough import siblings

LONG = [i % 90 for i in range(60)]
VERY_LONG = [i % 90 for i in range(2 * TOKENS_PER_STEP + 1)]
NOTHING = ([], [])


def decode(schedule: Schedule, until: EngineTurn, tokens: int) -> None:
    """Steps in which everybody draws 1, until the turn has so many tokens."""
    while len(until.tokens) < tokens:
        step = schedule.next_step()
        hand_out(schedule, step, [1] * len(step.drawing))


async def test_an_idle_context_gives_way_after_about_the_time_of_computing_it_again():
    schedule = scheduled(slots=1)
    schedule.add(turn(VERY_LONG, sample=0))
    run(schedule, 99)
    schedule.add(turn([5], sample=1))
    assert [run(schedule), run(schedule)] == [NOTHING, NOTHING]
    assert run(schedule, 99) == ([], [(1, 0)])
    assert schedule._stats.evictions == 1


async def test_nobody_is_evicted_while_nobody_waits():
    schedule = scheduled(slots=2, kv=128)
    for i in range(2):
        schedule.add(turn(LONG, sample=i))
        run(schedule, 99)
    assert [run(schedule) for _ in range(9)] == [NOTHING] * 9
    assert (schedule.num_contexts, schedule._stats.evictions) == (2, 0)


async def test_an_older_episode_takes_the_place_of_a_younger_idle_one_at_once():
    schedule = scheduled(slots=1)
    schedule.add(turn(LONG, sample=0))
    run(schedule, 99)
    schedule.add(turn(VERY_LONG, sample=1))
    assert run(schedule, 99) == ([], [(1, 0, 256), (1, 256)])
    schedule.add(turn([*LONG, 99, 30], sample=0, number=1))
    assert run(schedule, 99) == ([], [(0, 0, 59), (0, 59, 60), (0, 60, 62)])
    assert schedule._stats.evictions == 2


async def test_to_grow_a_turn_evicts_idle_contexts_then_younger_turns_which_keep_what_they_sampled():
    schedule = scheduled(kv=256, budget=200)
    schedule.add(turn([7] * 60, task="idle", sample=0))
    run(schedule, 99)
    older, younger = turn(LONG, sample=1, room=100), turn(LONG, sample=2, room=100)
    schedule.add(older)
    schedule.add(younger)
    decode(schedule, older, 65)
    assert (schedule.num_contexts, schedule._memory.tokens, schedule._stats.evictions) == (3, 192, 0)
    decode(schedule, older, 66)  # both outgrow their room; one evicts what is idle, the other
    assert (schedule.num_contexts, schedule._memory.tokens, schedule._stats.evictions) == (3, 256, 0)
    decode(schedule, older, 67)
    assert (schedule.num_contexts, schedule._memory.tokens, schedule._stats.evictions) == (2, 256, 1)
    decode(schedule, older, 128)
    assert schedule.active == [older, younger]
    decode(schedule, older, 130)
    assert (schedule.active, schedule.turns) == ([older], [older, younger])
    assert (schedule._memory.tokens, schedule._stats.evictions) == (192, 2)
    sampled = list(younger.tokens)
    schedule.end(older, well=True)
    schedule.release(older.key.episode)
    assert run(schedule, 1) == ([], [(2, 0, 59), (2, 59, len(sampled) - 1), (2, len(sampled) - 1)])
    assert younger.tokens == [*sampled, 1]
    assert schedule._stats.replayed_tokens == len(sampled) - 1


async def test_a_waiting_episode_is_let_in_only_if_all_under_way_can_grow():
    schedule = scheduled(kv=191)
    first = turn(LONG, sample=0, room=100)
    schedule.add(first)
    schedule.add(turn([5], sample=1))
    assert run(schedule, 1) == ([], [(0, 0, 59), (0, 59)])
    assert schedule.num_contexts == 1
    schedule = scheduled(kv=192)
    schedule.add(turn(LONG, sample=0, room=100))
    schedule.add(turn([5], sample=1))
    assert run(schedule, 1, 1) == ([], [(0, 0, 59), (1, 0), (0, 59)])


async def test_where_bits_may_change_what_was_sampled_is_computed_again_as_a_span():
    schedule = scheduled(slots=1, exact=False)
    schedule.add(turn(LONG, sample=0, room=40))
    for _ in range(20):
        run(schedule, 1)
    schedule.evict(schedule.turns[0].context)
    assert shape(schedule.next_step()) == ([], [(0, 0, 59), (0, 59, 79), (0, 79)])


async def test_what_is_released_or_dropped_leaves_no_memory_behind():
    schedule = scheduled(kv=512)
    for i in range(4):
        schedule.add(turn(LONG, sample=i))
    run(schedule, 99)
    run(schedule, 99, 99, 99)
    assert schedule._memory.tokens == 256
    for i in range(4):
        schedule.release(("train/0", "t", i))
    assert (schedule._memory.tokens, schedule.num_contexts, schedule._lenders) == (0, 0, {})


# -- at random


@dataclass
class World:
    """Episodes with tools that take some steps, steps that fail, turns that are cancelled; and what the caches would
    hold: (token, piece it was computed in, None = by itself)."""

    rng: random.Random
    schedule: Schedule
    budget: int
    contexts: dict[tuple[str, int], list[int]]
    opening: list[int]
    """What every fresh prompt opens with."""
    numbers: Counter[tuple[str, int]] = field(default_factory=Counter)
    away: dict[tuple[str, int], int] = field(default_factory=dict)
    held: dict[KVCache, list[tuple[int, object]]] = field(default_factory=dict)
    pieces: dict[tuple[str, int], dict[int, tuple[int, object]]] = field(default_factory=dict)

    def begin(self) -> None:
        """Turns whose tool has answered."""
        for episode, steps in list(self.away.items()):
            self.away[episode] = steps - 1
            if steps <= 0:
                del self.away[episode]
                task, sample = episode
                room = min(self.rng.choice((1, 3, 20, 90)), 320 - len(self.contexts[episode]))
                new = turn(self.contexts[episode], task=task, sample=sample, number=self.numbers[episode], room=room)
                new.opening = len(self.opening)
                self.schedule.add(new)
                once = self.pieces.setdefault(new.key.episode, {})
                for at in range(new.context.settled, len(once)):
                    del once[at]

    def over(self, done: EngineTurn) -> None:
        """The turn is over: a tool is called, or the episode ends."""
        episode = (done.key.task_id, done.key.sample_index)
        self.numbers[episode] += 1
        self.contexts[episode] = [*done.tokens, *self.rng.choices(range(90), k=self.rng.choice((0, 1, 7, 30)))]
        if self.rng.random() < 0.2:  # a context of its own for every turn, the same for all of the group
            self.contexts[episode] = [*self.opening, *[self.numbers[episode]] * self.rng.choice((40, 200))]
        if self.numbers[episode] == 4 or len(self.contexts[episode]) > 310:
            self.schedule.release(done.key.episode)
            del self.contexts[episode]
        else:
            self.away[episode] = self.rng.choice((0, 0, 1, 5, 30))

    def step(self) -> bool:
        """One step, with everything that must hold of it; whether anything was computed."""
        step, schedule = self.schedule.next_step(), self.schedule
        self.check(step)
        for copy in step.copies:
            self.held[copy.target.held] = self.held[copy.source][: copy.tokens]
        for t, start, stop, single, _ in step.units:
            known = self.held.setdefault(t.context.held, [])
            assert [token for token, _ in known[:start]] == t.tokens[:start]
            piece = None if single else (start, stop)
            known[start:] = [(token, piece) for token in t.tokens[start:stop]]
            once = self.pieces[t.key.episode]
            for at, entry in enumerate(known):
                assert once.setdefault(at, entry) == entry
        if self.rng.random() < 0.02:  # out of memory
            self.fail(list(self.schedule.active), step)
            return bool(step.units)
        drawing = step.drawing
        hand_out(schedule, step, [99 if self.rng.random() < 0.1 else self.rng.randrange(90) for _ in drawing])
        for done in [t for t in drawing if schedule.turn(t.key.episode) is not t]:
            self.over(done)
        if schedule.turns and self.rng.random() < 0.03:
            self.fail([self.rng.choice(schedule.turns)], None)
        return bool(step.units)

    def fail(self, turns: list[EngineTurn], step: Step | None) -> None:
        for t in turns:
            self.schedule.end(t, well=False)
            self.away[t.key.task_id, t.key.sample_index] = self.rng.choice((0, 3))
        for context in step.contexts if step else ():
            self.schedule.evict(context)

    def check(self, step: Step) -> None:
        memory, active = self.schedule._memory, self.schedule.active
        assert memory.tokens == sum(c.capacity for c in memory.contexts) <= self.budget
        assert {t.context for t in active} <= memory.contexts
        assert all(c.cached <= c.settled <= len(c.tokens) for c in memory.contexts)
        assert step.units or not step.copies
        planned = {u.turn for u in step.units}
        for t in active:  # a turn that only decodes waits for room at most
            if t.context.cached == len(t.tokens) - 1 and t not in planned:
                assert t.context.capacity < len(t.tokens)
        for u in step.units:
            assert u.stop <= u.turn.context.capacity
            assert u.draws == (u.stop == len(u.turn.tokens))
        prefill = [u.stop - u.start for u in step.units if not (u.draws and u.stop - u.start == 1)]
        assert sum(prefill) <= max(self.schedule._prefill_budget, prefill[0] if prefill else 0)


@pytest.mark.parametrize("seed", siblings(range(60), quick=20))
async def test_every_episode_ends_within_its_memory_and_is_computed_in_the_same_pieces_whatever_happens(seed):
    rng = random.Random(seed)
    budget = bucketed(320) + rng.choice((0, 64, 200, 1000))
    schedule = scheduled(
        slots=rng.choice((1, 2, 3, 6, 20)),
        budget=rng.choice((1, 20, 100, 2048)),
        chunk=rng.choice((8, 13, 64, 512)),
        kv=budget,
    )
    opening = rng.choices(range(90), k=rng.choice((0, 0, 5, 20, 80)))
    prompts = {task: [*opening, *rng.choices(range(90), k=rng.choice((1, 2, 12, 40, 150)))] for task in "abcd"}
    contexts = {(task, sample): list(prompts[task]) for task in prompts for sample in range(4)}
    world = World(rng, schedule, budget, contexts, opening, away={e: rng.choice((0, 0, 9)) for e in contexts})
    blocked = 0
    for _ in range(6000):
        if not world.contexts:
            break
        world.begin()
        blocked = 0 if world.step() or not schedule.turns else blocked + 1
        assert blocked <= 2 + 320 // TOKENS_PER_STEP
    assert world.contexts == {}
    assert (schedule._memory.tokens, schedule._lenders, schedule._starting, schedule._contexts) == (0, {}, {}, {})
