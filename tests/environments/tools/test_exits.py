"""Every way in which a tool episode ends, and what is left of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from agentgrpo.core.errors import ConfigError, EngineError, ToolError
from agentgrpo.core.types import Exit, Outcome
from agentgrpo.engines.base import Completion, SamplingParams, SeedKey
from agentgrpo.environments.tools.environment import NO_ACTION
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.tools.base import ToolResult
from agentgrpo.tools.workspace import EpisodeWorkspace, Workspaces
from tests.environments.scripted import ScriptedEngine, tokenizer
from tests.environments.tools.scripted import EOS, QUESTION, STOP, TASK, Adder, Saying, add, answer, play, say
from tests.renderers import families
from tests.runners import tool_runner

BABBLE = f"The sum of two numbers.{EOS}"
TOLD = f"{STOP} {NO_ACTION}\n"


async def test_a_turn_without_action_is_told(tmp_path: Path) -> None:
    played = await play(BABBLE, answer("5"), tmp_path=tmp_path)
    assert played.told == [TOLD]
    assert (played.episode.exit, played.episode.metrics["format_error_turns"]) == (Exit.ANSWERED, 1.0)
    assert played.episode.metrics["tool_turns"] == 0.0


async def test_too_many_of_them_in_a_row_end_it(tmp_path: Path) -> None:
    played = await play(BABBLE, BABBLE, add(2, 3), BABBLE, BABBLE, BABBLE, tmp_path=tmp_path)
    assert played.told == [TOLD, TOLD, " 5\n", TOLD, TOLD]
    assert (played.episode.exit, played.episode.answer) == (Exit.FORMAT_ERROR_LIMIT, None)
    assert played.episode.metrics["format_error_turns"] == 5.0
    assert played.episode.metrics["exit_format_error_limit"] == 1.0
    last = played.episode.branches[0].segments[-1]
    assert (last.sampled, last.text) == (True, BABBLE)


async def test_no_turns_are_left(tmp_path: Path) -> None:
    played = await play(add(2, 3), add(3, 4), tmp_path=tmp_path, max_turns=2)
    assert (played.episode.exit, played.episode.answer) == (Exit.MAX_TURNS, None)
    assert played.told == [" 5\n", " 7\n"]
    assert played.engine.released == [("train/3", "t7", 2)]


async def test_no_turn_begins_in_the_last_tokens_of_the_context(tmp_path: Path) -> None:
    """A token a character: the opening, the call and its result leave exactly as many as are asked for, or one less."""
    used = len(f"{QUESTION}\n{add(2, 3)} 5\n")
    enough = await play(add(2, 3), answer("5"), tmp_path=tmp_path, max_context=used + 30, min_context_left=30)
    assert enough.episode.exit is Exit.ANSWERED
    less = await play(add(2, 3), tmp_path=tmp_path, max_context=used + 29, min_context_left=30)
    assert (less.episode.exit, less.told) == (Exit.CONTEXT_OVERFLOW, [" 5\n"])
    by_engine = await play(add(2, 3), tmp_path=tmp_path, max_engine_context=used + 29, min_context_left=30)
    assert by_engine.episode.exit is Exit.CONTEXT_OVERFLOW


async def test_a_reply_that_does_not_fit_is_dropped_whole(tmp_path: Path) -> None:
    tools = (Saying(lambda text, workspace: ToolResult.ok("y" * 100)),)
    room = len(f"{QUESTION}\n{say('x')}") + 102  # " ", 100 letters, "\n", and no token to answer with
    options = {"tools": tools, "min_context_left": 1, "tmp_path": tmp_path}
    played = await play(say("x"), max_context=room, **options)  # type: ignore[arg-type]
    assert (played.episode.exit, played.told) == (Exit.CONTEXT_OVERFLOW, [])
    assert played.outcomes == [("say", Outcome.SUCCESS, 0)], "it was called all the same"
    one_more = await play(say("x"), "F", max_context=room + 1, **options)  # type: ignore[arg-type]
    assert (one_more.episode.exit, len(one_more.told)) == (Exit.CONTEXT_OVERFLOW, 1)


async def test_a_turn_is_cut_short_by_the_end_of_the_context(tmp_path: Path) -> None:
    room = len(f"{QUESTION}\n") + 40
    played = await play(f"Final Answer: {'5' * 60}{EOS}", tmp_path=tmp_path, max_context=room, min_context_left=40)
    assert (played.episode.exit, played.episode.answer) == (Exit.CONTEXT_OVERFLOW, None)
    assert [s.max_tokens for s in played.engine.samplings] == [40]
    assert len(played.episode.branches[0].token_ids) == room


# --- infrastructure


async def test_a_tool_error_is_tried_again_with_the_same_arguments(tmp_path: Path) -> None:
    seen: list[str] = []

    def twice_down(text: str, workspace: object) -> ToolResult:
        seen.append(text)
        if len(seen) < 3:
            raise ToolError("the server is down", kind="http_500")
        return ToolResult.ok("up")

    played = await play(say("x"), answer("5"), tmp_path=tmp_path, tools=(Saying(twice_down),), tool_retries=2)
    assert (seen, played.told) == (["x", "x", "x"], [" up\n"])
    assert played.outcomes == [("say", Outcome.SUCCESS, 0)], "one call, as far as anybody can tell"
    seen.clear()
    engine = ScriptedEngine([say("x")])
    with pytest.raises(ToolError, match="the server is down") as caught:
        await run(engine, tmp_path, Saying(twice_down), tool_retries=1)
    assert (caught.value.kind, seen) == ("http_500", ["x", "x"])
    assert engine.released == [("train/3", "t7", 2)]


@pytest.mark.parametrize("fault", ["raises", "returns a str", "cancels itself"])
async def test_whatever_a_tool_lets_out_is_a_tool_error(tmp_path: Path, fault: str) -> None:
    def broken(text: str, workspace: object) -> object:
        if fault == "raises":
            raise KeyError("typo")
        if fault == "cancels itself":
            raise asyncio.CancelledError
        return text

    problem = {
        "raises": "tool say: KeyError: 'typo' (test_exits.py:109 in broken)",
        "returns a str": "tool say: it returned a str; a ToolResult is needed",
        "cancels itself": "tool say: CancelledError: the call was cancelled from inside",
    }[fault]
    with pytest.raises(ToolError) as caught:
        await run(ScriptedEngine([say("x")]), tmp_path, Saying(broken))
    assert str(caught.value) == problem


async def test_a_failing_engine_leaves_nothing_behind(tmp_path: Path) -> None:
    class Down(ScriptedEngine):
        async def generate(self, token_ids: object, sampling: SamplingParams, key: SeedKey) -> Completion:
            raise ConnectionError("no route")

    engine = Down([])
    with pytest.raises(EngineError, match="engine: ConnectionError: no route"):
        await run(engine, tmp_path)
    assert engine.released == [("train/3", "t7", 2)]


async def test_a_call_past_its_deadline_is_told_and_stopped(tmp_path: Path) -> None:
    ends: list[str] = []

    async def hang(text: str, workspace: object) -> ToolResult:
        try:
            await asyncio.sleep(60)
        finally:
            ends.append(text)
        raise AssertionError

    played = await play(say("x"), answer("5"), tmp_path=tmp_path, tools=(Saying(hang),), tool_timeout_s=0.05)
    assert played.told == [" error: not done within 0.05 s\n"]
    assert (played.outcomes, ends) == ([("say", Outcome.TIMEOUT, 0)], ["x"])
    assert played.episode.metrics["invalid_calls"] == 0.0
    assert played.episode.tool_records[0].seconds >= 0.05


async def test_a_tool_that_swallows_its_cancellation_holds_up_nobody(tmp_path: Path) -> None:
    awake = asyncio.Event()

    async def deaf(text: str, workspace: object) -> ToolResult:
        while not awake.is_set():
            try:
                await awake.wait()
            except asyncio.CancelledError:
                continue
        return ToolResult.ok("late")

    began = asyncio.get_running_loop().time()
    played = await play(say("x"), answer("5"), tmp_path=tmp_path, tools=(Saying(deaf),), tool_timeout_s=0.05)
    assert asyncio.get_running_loop().time() - began < 1.05
    assert played.told == [" error: not done within 0.05 s\n"]
    awake.set()
    await asyncio.sleep(0)


async def test_a_cancelled_episode_leaves_nothing_behind(tmp_path: Path) -> None:
    """Two calls are under way; both are stopped, the workspace is gone and the engine has forgotten the episode."""
    under_way: list[str] = []
    both = asyncio.Event()
    places: list[Path] = []

    async def hang(text: str, workspace: EpisodeWorkspace) -> ToolResult:
        places.append(workspace.path)
        under_way.append(text)
        if len(under_way) == 2:
            both.set()
        try:
            await asyncio.sleep(60)
        finally:
            under_way.remove(text)
        raise AssertionError

    turn = "\n".join(say(text).removesuffix(STOP) for text in ("a", "b")) + STOP
    engine = ScriptedEngine([turn])
    episode = asyncio.create_task(run(engine, tmp_path, Saying(hang)))
    await both.wait()
    assert places[0] == places[1]
    assert places[0].is_dir()
    before = len(asyncio.all_tasks())
    episode.cancel()
    with pytest.raises(asyncio.CancelledError):
        await episode
    assert (under_way, places[0].exists(), engine.released) == ([], False, [("train/3", "t7", 2)])
    assert len(asyncio.all_tasks()) < before == 6, "the test, the episode, a task a call and one that minds it"
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_one_failing_call_stops_the_others(tmp_path: Path) -> None:
    stopped: list[str] = []

    async def one_fails(text: str, workspace: object) -> ToolResult:
        if text == "b":
            raise ToolError("down")
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append(text)
        raise AssertionError

    turn = "\n".join(say(text).removesuffix(STOP) for text in ("a", "b", "c")) + STOP
    with pytest.raises(ToolError, match="down"):
        await run(ScriptedEngine([turn]), tmp_path, Saying(one_fails))
    assert sorted(stopped) == ["a", "c"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("max_turns", 0), ("max_context", 1), ("tool_timeout_s", 0.0), ("max_calls", -1), ("tool_retries", -1)],
)
def test_limits_out_of_range_are_refused(tmp_path: Path, option: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"environment\.{option} {value}: .* is allowed; raise it"):
        agent(ScriptedEngine([]), tmp_path, **{option: value})


def test_an_episode_that_could_not_begin_is_refused_before_any(tmp_path: Path) -> None:
    """A token a character: as many as are asked for may be left, not one less, by the agent's limit or the engine's."""
    opening = len(f"{QUESTION}\n")
    engine = ScriptedEngine([], max_context=opening + 30)
    agent(engine, tmp_path, min_context_left=30).rehearse(TASK)
    agent(ScriptedEngine([]), tmp_path, min_context_left=30, max_context=opening + 30).rehearse(TASK)
    for limits in ({"min_context_left": 31}, {"min_context_left": 30, "max_context": opening + 29}):
        with pytest.raises(
            ConfigError, match=rf"^task t7 opens with {opening} tokens, tools included: environment\.max_"
        ):
            agent(engine, tmp_path, **limits).rehearse(TASK)
    assert engine.keys == []


def test_a_tool_whose_schema_forges_control_tokens_is_refused_before_any_episode(tmp_path: Path) -> None:
    tool = Saying(lambda text, workspace: ToolResult.ok(text))
    tool.spec = replace(tool.spec, parameters={"type": "object", "properties": {"<|im_end|>": {"type": "string"}}})
    made = tool_runner(
        engine=ScriptedEngine([]),
        renderer=families.renderer("chatml"),
        tools={"say": tool},
        workspaces=Workspaces(tmp_path),
    )
    with pytest.raises(ConfigError, match=r"tool: the name '<\|im_end\|>' spells a control token .*; rename it"):
        made.rehearse(TASK)


def agent(engine: ScriptedEngine, tmp_path: Path, *tools: Saying, **options: object) -> PolicyRunner:
    return tool_runner(
        engine=engine,
        renderer=ReactRenderer(tokenizer=tokenizer()),
        tools={tool.spec.name: tool for tool in (Adder(), *tools)},
        workspaces=Workspaces(tmp_path),
        **options,  # type: ignore[arg-type]
    )


async def run(engine: ScriptedEngine, tmp_path: Path, *tools: Saying, **options: object) -> object:
    sampling = SamplingParams(max_tokens=1000)
    return await agent(engine, tmp_path, *tools, **options).run(
        TASK, sample_index=2, stream="train/3", sampling=sampling
    )
