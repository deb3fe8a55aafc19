from __future__ import annotations

import asyncio

import pytest

from agentgrpo.engines.base import SeedKey
from agentgrpo.engines.sampling import Distribution, Noise
from agentgrpo.engines.schedule import Copy, Schedule, Step, Turn
from agentgrpo.engines.stops import StopRule
from agentgrpo.errors import EngineError
from agentgrpo.types import FinishReason

RULE = StopRule(final=frozenset({99}), suspects=frozenset(), strings=(), decode=str)
TEXT = [10, 11, 12, 13, 14]


def turn(tokens: list[int], *, task: str = "t", sample: int = 0, number: int = 0, room: int = 4) -> Turn:
    key = SeedKey("train/0", task, sample, number)
    return Turn(
        key=key,
        tokens=list(tokens),
        max_total=len(tokens) + room,
        distribution=Distribution(1.0, 0, 1.0, 0.0),
        noise=Noise(0, key),
        stop=RULE,
        future=asyncio.get_running_loop().create_future(),
        queued_at=0.0,
        num_given=len(tokens),
    )


def shape(step: Step) -> tuple[object, ...]:
    """(copies, decoding samples, spans as (sample, start, stop, sampled))"""
    spans = [(s.turn.key.sample_index, s.start, s.stop, s.sampled) for s in step.spans]
    return step.copies, [t.key.sample_index for t in step.decoding], spans


def run(schedule: Schedule, *tokens: int) -> tuple[object, ...]:
    """One step in which `tokens` are drawn, in order; turns that end are ended."""
    step = schedule.next_step()
    schedule.computed(step)
    for t, token in zip(step.drawing, tokens, strict=True):
        if t.take(token, -1.0) is not None:
            schedule.end(t, well=True)
    return shape(step)


async def test_a_group_computes_its_prompt_once_and_everyone_decodes_its_last_token():
    schedule = Schedule(slots=4, prefill_budget=100)
    for i in range(3):
        schedule.add(turn(TEXT, sample=i))
    assert run(schedule) == ([], [], [(0, 0, 4, False)])
    assert run(schedule, 1, 1, 1) == ([Copy(0, [1, 2], 4)], [0, 1, 2], [])
    assert run(schedule, 1, 1, 1) == ([], [0, 1, 2], [])
    schedule.add(turn(TEXT, sample=3))
    assert run(schedule, 1, 1, 1, 1) == ([Copy(0, [3], 4)], [0, 1, 2, 3], [])


async def test_another_prompt_or_another_group_is_not_shared():
    schedule = Schedule(slots=4, prefill_budget=100)
    schedule.add(turn(TEXT, sample=0))
    schedule.add(turn([*TEXT[:-1], 77, 78], sample=1))
    schedule.add(turn(TEXT, sample=2, task="u"))
    assert run(schedule) == ([], [], [(0, 0, 4, False), (1, 0, 5, False), (2, 0, 4, False)])


async def test_the_last_prompt_token_may_differ():
    schedule = Schedule(slots=4, prefill_budget=100)
    schedule.add(turn(TEXT, sample=0))
    schedule.add(turn([*TEXT[:-1], 77], sample=1))
    run(schedule)
    assert run(schedule, 1, 1) == ([Copy(0, [1], 4)], [0, 1], [])


async def test_a_prompt_of_one_token_decodes_at_once():
    schedule = Schedule(slots=1, prefill_budget=100)
    schedule.add(turn([5]))
    assert run(schedule, 1) == ([], [0], [])


async def test_later_turns_compute_only_what_is_new():
    schedule = Schedule(slots=1, prefill_budget=100)
    schedule.add(turn(TEXT))
    run(schedule)
    run(schedule, 1)
    run(schedule, 99)
    assert not schedule.has_work
    schedule.add(turn([*TEXT, 1, 99, 30, 31], number=1))
    assert run(schedule, 2) == ([], [], [(0, 6, 9, True)])
    assert run(schedule, 99) == ([], [0], [])
    schedule.add(turn([*TEXT, 1, 99, 30, 31, 2, 99], number=2))  # nothing injected
    assert run(schedule, 99) == ([], [0], [])
    schedule.add(turn([*TEXT, 1, 99, 40, 41, 42], number=3))  # another context from token 7 on
    assert run(schedule, 99) == ([], [], [(0, 7, 10, True)])


async def test_a_context_that_parts_inside_the_prompt_no_longer_lends_it():
    schedule = Schedule(slots=3, prefill_budget=100)
    schedule.add(turn(TEXT, sample=0))
    run(schedule)
    run(schedule, 99)
    schedule.add(turn([10, 11, 50, 51], sample=0, number=1))
    schedule.add(turn(TEXT, sample=1))
    assert run(schedule, 99) == ([], [], [(0, 2, 4, True), (1, 0, 4, False)])


async def test_a_freed_slot_lends_nothing_but_its_copies_do():
    schedule = Schedule(slots=3, prefill_budget=100)
    schedule.add(turn(TEXT, sample=0))
    schedule.add(turn(TEXT, sample=1))
    run(schedule)
    run(schedule, 99, 99)
    assert schedule.release(("train/0", "t", 0)) == 0
    schedule.add(turn(TEXT, sample=2))
    assert run(schedule, 99) == ([Copy(1, [0], 4)], [2], [])
    for i in (1, 2):
        schedule.release(("train/0", "t", i))
    schedule.add(turn(TEXT, sample=3))
    assert run(schedule) == ([], [], [(3, 0, 4, False)])


async def test_episodes_beyond_the_slots_wait_in_order():
    schedule = Schedule(slots=1, prefill_budget=100)
    turns = [turn([5], sample=i) for i in range(4)]
    for t in turns:
        schedule.add(t)
    assert run(schedule, 99) == ([], [0], [])
    assert not schedule.has_work
    schedule.end(turns[1], well=False)  # cancelled while it waited
    schedule.release(("train/0", "t", 0))
    assert schedule.has_work
    assert run(schedule, 99) == ([], [2], [])
    assert schedule.num_contexts == 1


async def test_spans_beyond_the_budget_wait_and_the_first_always_runs():
    schedule = Schedule(slots=4, prefill_budget=9)
    for i in range(3):
        schedule.add(turn(TEXT, task=str(i), sample=i))
    assert run(schedule) == ([], [], [(0, 0, 4, False)])
    assert run(schedule, 1) == ([], [0], [(1, 0, 4, False)])
    schedule = Schedule(slots=4, prefill_budget=1)
    schedule.add(turn(TEXT))
    assert run(schedule) == ([], [], [(0, 0, 4, False)])


async def test_a_turn_that_did_not_end_well_leaves_its_context_as_it_was():
    schedule = Schedule(slots=2, prefill_budget=100)
    schedule.add(turn(TEXT))
    run(schedule)
    run(schedule, 99)
    second = turn([*TEXT, 99, 30, 31], number=1)
    schedule.add(second)
    run(schedule, 1)
    run(schedule, 1)
    schedule.end(second, well=False)
    schedule.add(turn([*TEXT, 99, 30, 31], number=1))
    assert run(schedule, 1) == ([], [], [(0, 5, 8, True)])


async def test_two_turns_of_one_episode_at_once_are_refused():
    schedule = Schedule(slots=1, prefill_budget=100)
    schedule.add(turn(TEXT))
    with pytest.raises(EngineError, match="one after another"):
        schedule.add(turn(TEXT))
    run(schedule)
    with pytest.raises(EngineError, match="one after another"):
        schedule.add(turn(TEXT))


async def test_how_a_turn_ends():
    t = turn(TEXT, room=3)
    assert [t.take(1, -0.5), t.take(2, -0.5), t.take(3, -0.5)] == [None, None, FinishReason.LENGTH]
    t = turn(TEXT, room=2)
    assert [t.take(1, -0.5), t.take(99, -0.5)] == [None, FinishReason.STOP]
