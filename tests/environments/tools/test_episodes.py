"""Whole episodes: tokens, masks, records, metrics, and what the engine is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentgrpo.core.types import Exit, Message, Outcome, Task, ToolRecord
from agentgrpo.environments.tools.state import tool_figures
from agentgrpo.tools.base import ToolResult
from tests.environments.scripted import renderer
from tests.environments.tools.scripted import QUESTION, STOP, Saying, add, answer, call, echo, fail, play, say

NOTHING = {
    "tool_calls": 0.0,
    "failed_calls": 0.0,
    "invalid_calls": 0.0,
    "tool_turns": 0.0,
    "tool_success": 1.0,
    "repeated_calls": 0.0,
    "looping": 0.0,
    "parallel_calls": 0.0,
    "call_limit_hits": 0.0,
    "truncated_outputs": 0.0,
    "format_error_turns": 0.0,
    "calls/add": 0.0,
    "failures/add": 0.0,
    **{f"exit_{exit.value}": 0.0 for exit in Exit},
}


def counted(**changed: float) -> dict[str, float]:
    return NOTHING | {name.replace("__", "/"): value for name, value in changed.items()}


async def test_a_call_and_an_answer(tmp_path: Path) -> None:
    played = await play(add(2, 3), answer("5"), tmp_path=tmp_path, prices={"add": 0.25})
    episode, [branch] = played.episode, played.episode.branches
    assert [(s.role, s.sampled, s.text) for s in branch.segments] == [
        ("user", False, f"{QUESTION}\n"),
        ("assistant", True, add(2, 3)),
        ("tool", False, " 5\n"),
        ("assistant", True, answer("5")),
    ]
    assert branch.token_ids == sum((renderer().encode_action(s.text) for s in branch.segments), ())
    sizes = [len(s.token_ids) for s in branch.segments]
    assert branch.loss_mask == (0,) * sizes[0] + (1,) * sizes[1] + (0,) * sizes[2] + (1,) * sizes[3]
    assert branch.segments[1].logprobs == tuple(-i / 8 for i in range(sizes[1]))
    assert played.engine.contexts == [f"{QUESTION}\n", f"{QUESTION}\n{add(2, 3)} 5\n"]
    assert (episode.answer, episode.exit, episode.sample_index, episode.failure) == ("5", Exit.ANSWERED, 2, None)
    assert episode.tool_records == (
        ToolRecord(name="add", arguments={"a": 2, "b": 3}, outcome=Outcome.SUCCESS, turn=0, num_bytes=1, cost=0.25),
    )
    assert episode.metrics == counted(tool_calls=1.0, tool_turns=1.0, calls__add=1.0, exit_answered=1.0)
    assert played.adder.calls == [({"a": 2, "b": 3}, "train/3|t7|2")]


async def test_the_engine_is_asked_turn_by_turn_and_released_once(tmp_path: Path) -> None:
    played = await play(add(2, 3), answer("5"), tmp_path=tmp_path, max_tokens=77)
    assert [(k.stream, k.task_id, k.sample_index, k.turn) for k in played.engine.keys] == [
        ("train/3", "t7", 2, 0),
        ("train/3", "t7", 2, 1),
    ]
    assert {(s.max_tokens, s.stop, s.stop_token_ids) for s in played.engine.samplings} == {
        (77, (STOP,), (renderer().encode_action("<|im_end|>")))
    }
    assert played.engine.released == [("train/3", "t7", 2)]
    assert {k: v for k, v in played.episode.timings.items() if k != "time_tools"} == {
        "time_generate": 1.0,
        "time_queue": 0.5,
    }


async def test_an_answer_without_a_call(tmp_path: Path) -> None:
    played = await play(answer("5"), tmp_path=tmp_path, system_prompt="Be brief.")
    assert [s.text for s in played.episode.branches[0].segments] == [f"Be brief.\n{QUESTION}\n", answer("5")]
    assert played.episode.metrics == counted(exit_answered=1.0)
    assert played.episode.tool_records == ()


async def test_parallel_calls_are_answered_in_order(tmp_path: Path) -> None:
    """The first is the slowest: it must wait for a call that comes after it."""
    order: list[str] = []
    released: list[asyncio.Event] = []

    async def take_turns(text: str, workspace: object) -> ToolResult:
        order.append(f"{text} begins")
        if text == "first":
            released.append(asyncio.Event())
            await released[0].wait()
        else:
            released[0].set()
        order.append(f"{text} ends")
        return ToolResult.ok(text.upper())

    turn = call("say", '{"text": "first"}') + "\n" + call("say", '{"text": "second"}') + STOP
    played = await play(turn, answer("5"), tmp_path=tmp_path, tools=(Saying(take_turns),))
    assert order == ["first begins", "second begins", "second ends", "first ends"]
    assert played.told == [" FIRST\nObservation: SECOND\n"]
    assert [(r.arguments, r.turn, r.num_bytes) for r in played.episode.tool_records] == [
        ({"text": "first"}, 0, 5),
        ({"text": "second"}, 0, 6),
    ]
    assert played.episode.metrics == counted(
        tool_calls=2.0, tool_turns=1.0, parallel_calls=2.0, calls__say=2.0, failures__say=0.0, exit_answered=1.0
    )


@pytest.mark.parametrize("how", ["parallel_calls=false", "an exclusive tool"])
async def test_calls_wait_for_each_other_where_they_must(tmp_path: Path, how: str) -> None:
    order: list[str] = []

    async def slow(text: str, workspace: object) -> ToolResult:
        order.append(f"{text} begins")
        await asyncio.sleep(0.01)
        order.append(f"{text} ends")
        return ToolResult.ok(text)

    exclusive = how == "an exclusive tool"
    turn = "\n".join(call("say", f'{{"text": "{t}"}}') for t in ("a", "b")) + STOP
    tool = Saying(slow, exclusive=exclusive)
    played = await play(turn, answer("5"), tmp_path=tmp_path, tools=(tool,), parallel_calls=exclusive)
    assert order == ["a begins", "a ends", "b begins", "b ends"]
    assert played.told == [" a\nObservation: b\n"]


async def test_a_malformed_call_is_answered_like_a_call(tmp_path: Path) -> None:
    bad = call("add", '{"a": 2, "b": 3') + STOP
    played = await play(bad, answer("5"), tmp_path=tmp_path)
    [told] = played.told
    assert told.startswith(" error: Action Input: this is not JSON")
    [record] = played.episode.tool_records
    assert (record.name, record.arguments, record.outcome, record.cost) == ("add", {}, Outcome.INVALID_ARGS, 0.01)
    assert record.num_bytes == len(told.strip())
    assert played.adder.calls == []
    assert played.episode.metrics == counted(
        tool_calls=1.0,
        failed_calls=1.0,
        invalid_calls=1.0,
        tool_turns=1.0,
        tool_success=0.0,
        calls__add=1.0,
        failures__add=1.0,
        exit_answered=1.0,
    )


async def test_an_unknown_tool(tmp_path: Path) -> None:
    played = await play(call("sum", '{"a": 2}') + STOP, answer("5"), tmp_path=tmp_path, tools=(Saying(echo),))
    assert played.told == [" error: there is no tool sum; there are add, say\n"]
    [record] = played.episode.tool_records
    assert (record.name, record.arguments, record.outcome) == ("sum", {"a": 2}, Outcome.TOOL_NOT_FOUND)
    assert record.cost == 0.0
    assert played.episode.metrics == counted(
        tool_calls=1.0,
        failed_calls=1.0,
        invalid_calls=1.0,
        tool_turns=1.0,
        tool_success=0.0,
        calls__say=0.0,
        failures__say=0.0,
        exit_answered=1.0,
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"a": 2}', "error: the argument b is missing; needed: a, b"),
        ('{"a": 2, "b": "3"}', "error: b must be a whole number"),
        ('{"a": 2, "b": 3, "c": 4}', "error: unknown argument c; allowed: a, b"),
        ('{"a": 2, "b": ' + "[" * 40 + "]" * 40 + "}", "error: the arguments are nested more than 32 levels deep"),
    ],
)
async def test_arguments_that_do_not_fit(tmp_path: Path, arguments: str, problem: str) -> None:
    played = await play(call("add", arguments) + STOP, answer("5"), tmp_path=tmp_path)
    assert played.told == [f" {problem}\n"]
    assert played.outcomes == [("add", Outcome.INVALID_ARGS, 0)]
    assert played.adder.calls == []


async def test_a_tool_that_cannot(tmp_path: Path) -> None:
    """Its failure is told, and is not the policy's fault."""
    played = await play(say("no such file"), answer("5"), tmp_path=tmp_path, tools=(Saying(fail),))
    assert played.told == [" error: no such file\n"]
    assert played.outcomes == [("say", Outcome.RUNTIME_ERROR, 0)]
    assert played.episode.metrics == counted(
        tool_calls=1.0,
        failed_calls=1.0,
        tool_turns=1.0,
        tool_success=0.0,
        calls__say=1.0,
        failures__say=1.0,
        exit_answered=1.0,
    )


async def test_long_output_is_cut_and_says_so(tmp_path: Path) -> None:
    played = await play(
        say("x"),
        answer("5"),
        tmp_path=tmp_path,
        tools=(Saying(lambda text, workspace: ToolResult.ok("0123456789" * 100)),),
        max_tool_output_tokens=50,
    )
    assert played.told == [" 01234567890123456789012\n[... output truncated ...]\n"]
    assert len(played.told[0].strip()) == 50, "a token a character"
    [record] = played.episode.tool_records
    assert (record.num_bytes, record.was_cut) == (1000, True)
    assert played.episode.metrics["truncated_outputs"] == 1.0


async def test_repeated_calls_and_loops(tmp_path: Path) -> None:
    again = call("add", '{"b": 3, "a": 2}') + STOP
    twice = await play(add(2, 3), again, add(1, 1), add(2, 3), answer("5"), tmp_path=tmp_path)
    assert (twice.episode.metrics["repeated_calls"], twice.episode.metrics["looping"]) == (2.0, 0.0)
    thrice = await play(add(1, 1), add(2, 3), again, add(2, 3), answer("5"), tmp_path=tmp_path)
    assert (thrice.episode.metrics["repeated_calls"], thrice.episode.metrics["looping"]) == (2.0, 1.0)
    garbled = call("add", "{") + STOP
    malformed = await play(*[garbled] * 3, answer("5"), tmp_path=tmp_path)
    assert (malformed.episode.metrics["repeated_calls"], malformed.episode.metrics["looping"]) == (2.0, 1.0)


async def test_calls_past_the_limit_are_refused(tmp_path: Path) -> None:
    both = "\n".join(call("add", f'{{"a": {a}, "b": 1}}') for a in (1, 2)) + STOP
    played = await play(add(2, 3), both, answer("5"), tmp_path=tmp_path, max_calls=2)
    assert played.told == [
        " 5\n",
        " 2\nObservation: error: the limit of 2 calls is reached; give the final answer\n",
    ]
    assert played.outcomes == [
        ("add", Outcome.SUCCESS, 0),
        ("add", Outcome.SUCCESS, 1),
        ("add", Outcome.INVALID_ARGS, 1),
    ]
    assert len(played.adder.calls) == 2
    assert played.episode.metrics["call_limit_hits"] == 1.0
    costs = [record.cost for record in played.episode.tool_records]
    assert sum(costs) == tool_figures(["add"]).cost(played.episode.metrics, {"add": 0.01})  # as evaluations charge


async def test_a_question_of_several_messages(tmp_path: Path) -> None:
    task = Task(
        id="t7",
        messages=(Message(role="system", content="S"), Message(role="user", content="U")),
        references=("5",),
    )
    played = await play(answer("5"), tmp_path=tmp_path, task=task)
    assert played.engine.contexts == ["S\nU\n"]
