from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentgrpo.core.errors import EngineError
from agentgrpo.core.types import FinishReason
from agentgrpo.engines.base import SeedKey
from agentgrpo.engines.counters import EngineStats
from agentgrpo.engines.sampling import Distribution, Noise, StopRule
from agentgrpo.engines.schedule import EngineTurn, Schedule, Step

RULE = StopRule(final=frozenset({99}), suspects=frozenset(), strings=(), decode=str)
TEXT = list(range(10, 20))


def scheduled(
    *, slots: int = 4, budget: int = 100, chunk: int = 512, kv: int | None = None, exact: bool = True
) -> Schedule:
    return Schedule(
        slots=slots, prefill_budget=budget, prefill_chunk=chunk, kv_budget=kv, exact=exact, stats=EngineStats()
    )


def turn(
    tokens: list[int], *, task: str = "t", sample: int = 0, number: int = 0, room: int = 4, opening: int = 0
) -> EngineTurn:
    key = SeedKey("train/0", task, sample, number)
    return EngineTurn(
        key=key,
        tokens=list(tokens),
        max_total=len(tokens) + room,
        distribution=Distribution(1.0, 0, 1.0, 0.0),
        noise=Noise(0, key),
        stop=RULE,
        future=asyncio.get_running_loop().create_future(),
        queued_at=0.0,
        num_given=len(tokens),
        opening=opening,
    )


def shape(step: Step) -> tuple[Any, ...]:
    """(copies as (to sample, tokens), units as (sample, start, stop) or (sample, start) for a decoding row)"""
    sample = {u.turn.context: u.turn.key.sample_index for u in step.units}
    copies = [(sample[c.target], c.tokens) for c in step.copies]
    units = [
        (u.turn.key.sample_index, u.start) if u.draws and u.stop - u.start == 1 else (sample[u.turn.context], *u[1:3])
        for u in step.units
    ]
    return copies, units


def run(schedule: Schedule, *tokens: int) -> tuple[Any, ...]:
    """One step in which `tokens` are drawn, in order; turns that end are ended."""
    step = schedule.next_step()
    done = shape(step)
    hand_out(schedule, step, tokens)
    return done


def hand_out(schedule: Schedule, step: Step, tokens: Sequence[int]) -> None:
    drawing = step.drawing
    schedule.computed(step)
    for t, token in zip(drawing, tokens, strict=True):
        if t.take(token, -1.0) is not None:
            schedule.end(t, well=True)


async def test_a_group_computes_its_prompt_once_and_everyone_decodes_its_last_token():
    schedule = scheduled()
    for i in range(3):
        schedule.add(turn(TEXT, sample=i))
    assert run(schedule, 1) == ([], [(0, 0, 9), (0, 9)])
    assert run(schedule, 1, 1, 1) == ([(1, 9), (2, 9)], [(0, 10), (1, 9), (2, 9)])
    assert run(schedule, 1, 1, 1) == ([], [(0, 11), (1, 10), (2, 10)])
    schedule.add(turn(TEXT, sample=3))
    assert run(schedule, 1, 1, 1, 1) == ([(3, 9)], [(0, 12), (1, 11), (2, 11), (3, 9)])


async def test_another_prompt_or_another_group_is_not_shared():
    schedule = scheduled()
    schedule.add(turn(TEXT, sample=0))
    schedule.add(turn([*TEXT[:-1], 77, 78], sample=1))
    schedule.add(turn(TEXT, sample=2, task="u"))
    assert run(schedule, 1, 1, 1) == ([], [(0, 0, 9), (1, 0, 10), (2, 0, 9), (0, 9), (1, 10), (2, 9)])


async def test_an_opening_is_computed_once_for_all_groups_and_a_prompt_once_for_its_group():
    schedule = scheduled()
    prompts = {"a": [*TEXT, *range(30, 45)], "b": [*TEXT, *range(60, 75)]}
    for i, task in enumerate("abab"):
        schedule.add(turn(prompts[task], sample=i, task=task, opening=10))
    assert run(schedule, 1) == ([], [(0, 0, 10), (0, 10, 24), (0, 24)])
    assert run(schedule, 1, 1, 1) == ([(1, 10), (2, 24)], [(0, 25), (1, 10, 24), (2, 24), (1, 24)])
    assert run(schedule, 1, 1, 1, 1) == ([(3, 24)], [(0, 26), (1, 25), (2, 25), (3, 24)])
    assert schedule._stats.copied_tokens == 10 + 24 + 24
    assert schedule._stats.prefill_tokens == 10 + 14 + 14


async def test_the_next_fresh_prompt_keeps_the_opening_and_lends_it_still():
    schedule = scheduled()
    schedule.add(turn([*TEXT, *range(30, 45)], opening=10))
    run(schedule, 99)
    schedule.add(turn([*TEXT, *range(60, 75)], number=1, opening=10))
    schedule.add(turn([*TEXT, *range(80, 90)], task="u", sample=1, opening=10))
    assert run(schedule, 99, 99) == ([(1, 10)], [(0, 10, 24), (1, 10, 19), (0, 24), (1, 19)])


async def test_who_has_the_opening_may_copy_the_prompt_and_who_waits_for_one_that_fails_computes_it():
    schedule = scheduled(budget=10, chunk=10)
    turns = [turn([*TEXT, *range(30, 55)], sample=i, opening=10) for i in range(3)]
    for t in turns:
        schedule.add(t)
    assert run(schedule) == ([], [(0, 0, 10)])
    assert run(schedule) == ([], [(0, 10, 20)])
    schedule.end(turns[0], well=False)
    schedule.release(turns[0].key.episode)
    assert run(schedule) == ([], [(1, 0, 10)])
    assert run(schedule) == ([], [(1, 10, 20)])
    assert run(schedule) == ([], [(1, 20, 30)])
    assert run(schedule, 1) == ([], [(1, 30, 34), (1, 34)])
    assert run(schedule, 1, 1) == ([(2, 34)], [(1, 35), (2, 34)])


async def test_the_last_prompt_token_may_differ():
    schedule = scheduled()
    schedule.add(turn(TEXT, sample=0))
    schedule.add(turn([*TEXT[:-1], 77], sample=1))
    run(schedule, 1)
    assert run(schedule, 1, 1) == ([(1, 9)], [(0, 10), (1, 9)])


async def test_later_turns_compute_only_what_is_new():
    schedule = scheduled(slots=1)
    schedule.add(turn(TEXT))
    run(schedule, 1)
    run(schedule, 99)
    assert schedule.turns == []
    schedule.add(turn([*TEXT, 1, 99, 30, 31], number=1))
    assert run(schedule, 2) == ([], [(0, 11, 14)])
    assert run(schedule, 99) == ([], [(0, 14)])
    schedule.add(turn([*TEXT, 1, 99, 30, 31, 2, 99], number=2))  # nothing injected
    assert run(schedule, 99) == ([], [(0, 15)])
    schedule.add(turn([*TEXT, 1, 99, 40, 41, 42], number=3))  # another context from token 12 on
    assert run(schedule, 99) == ([], [(0, 12, 15)])


async def test_a_context_that_parts_inside_the_prompt_no_longer_lends_it():
    schedule = scheduled()
    schedule.add(turn(TEXT, sample=0))
    run(schedule, 99)
    schedule.add(turn([10, 11, 50, 51], sample=0, number=1))
    schedule.add(turn(TEXT, sample=1))
    assert run(schedule, 99, 99) == ([], [(0, 0, 3), (1, 0, 9), (0, 3), (1, 9)])


async def test_a_released_episode_lends_nothing_but_those_who_copied_do():
    schedule = scheduled()
    schedule.add(turn(TEXT, sample=0))
    schedule.add(turn(TEXT, sample=1))
    run(schedule, 99)
    run(schedule, 99)
    schedule.release(("train/0", "t", 0))
    schedule.add(turn(TEXT, sample=2))
    assert run(schedule, 99) == ([(2, 9)], [(2, 9)])
    for i in (1, 2):
        schedule.release(("train/0", "t", i))
    schedule.add(turn(TEXT, sample=3))
    assert run(schedule, 99) == ([], [(3, 0, 9), (3, 9)])


async def test_whoever_computes_the_prompt_may_fail_and_the_next_one_does_it():
    schedule = scheduled(budget=4, chunk=8)
    turns = [turn([*TEXT, *TEXT], sample=i) for i in range(2)]
    for t in turns:
        schedule.add(t)
    assert run(schedule) == ([], [(0, 0, 8)])
    assert run(schedule) == ([], [(0, 8, 16)])
    schedule.end(turns[0], well=False)
    assert run(schedule) == ([], [(1, 0, 8)])
    assert schedule.turns == [turns[1]]


async def test_a_long_prompt_is_computed_in_pieces_while_others_decode():
    schedule = scheduled(budget=16, chunk=8)
    schedule.add(turn([5], task="u", sample=1, room=9))
    run(schedule, 1)
    schedule.add(turn([*TEXT, *TEXT, *TEXT], sample=0))
    assert run(schedule, 1) == ([], [(1, 1), (0, 0, 8), (0, 8, 16)])
    assert run(schedule, 1, 1) == ([], [(1, 2), (0, 16, 24), (0, 24, 29), (0, 29)])


async def test_a_long_prompt_keeps_nobody_from_beginning():
    schedule = scheduled(budget=24, chunk=8)
    schedule.add(turn([*TEXT] * 5, sample=0))
    schedule.add(turn(TEXT, task="u", sample=1))
    assert run(schedule) == ([], [(0, 0, 8), (1, 0, 8), (0, 8, 16)])
    assert run(schedule, 1) == ([], [(0, 16, 24), (1, 8, 9), (0, 24, 32), (1, 9)])


async def test_pieces_beyond_the_budget_wait_and_one_always_runs():
    schedule = scheduled(budget=12)
    for i in range(3):
        schedule.add(turn(TEXT, task=str(i), sample=i))
    assert run(schedule, 1) == ([], [(0, 0, 9), (0, 9)])
    assert run(schedule, 1, 1) == ([], [(0, 10), (1, 0, 9), (1, 9)])
    schedule = scheduled(budget=1)
    schedule.add(turn(TEXT))
    schedule.add(turn([5], sample=1))
    assert run(schedule, 1, 1) == ([], [(0, 0, 9), (1, 0), (0, 9)])


async def test_episodes_beyond_the_slots_wait_in_order():
    schedule = scheduled(slots=1)
    turns = [turn([5], sample=i) for i in range(4)]
    for t in turns:
        schedule.add(t)
    assert run(schedule, 1) == ([], [(0, 0)])
    schedule.end(turns[1], well=False)  # cancelled while it waited
    assert run(schedule, 99) == ([], [(0, 1)])
    schedule.release(("train/0", "t", 0))
    assert run(schedule, 99) == ([], [(2, 0)])
    assert schedule.num_contexts == 1


async def test_a_turn_that_did_not_end_well_leaves_its_context_as_it_was():
    schedule = scheduled()
    schedule.add(turn(TEXT))
    run(schedule, 99)
    second = turn([*TEXT, 99, 30, 31], number=1)
    schedule.add(second)
    run(schedule, 1)
    run(schedule, 1)
    schedule.end(second, well=False)
    schedule.add(turn([*TEXT, 99, 30, 31], number=1))
    assert run(schedule, 1) == ([], [(0, 10, 13)])


async def test_two_turns_of_one_episode_at_once_are_refused():
    schedule = scheduled(slots=1)
    schedule.add(turn(TEXT))
    with pytest.raises(EngineError, match="one after another"):
        schedule.add(turn(TEXT))
    run(schedule, 1)
    with pytest.raises(EngineError, match="one after another"):
        schedule.add(turn(TEXT))


async def test_how_a_turn_ends():
    t = turn(TEXT, room=3)
    assert [t.take(1, -0.5), t.take(2, -0.5), t.take(3, -0.5)] == [None, None, FinishReason.LENGTH]
    t = turn(TEXT, room=2)
    assert [t.take(1, -0.5), t.take(99, -0.5)] == [None, FinishReason.STOP]
