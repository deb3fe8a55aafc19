"""The same loop over every way to write calls: the agent knows none of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from agentgrpo.core.messages import ParsedTurn, ToolReply
from agentgrpo.core.types import Exit, Outcome, ToolCall
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.tools.base import ToolResult
from agentgrpo.tools.workspace import Workspaces
from tests.environments.tools.scripted import TASK, Adder, Saying
from tests.renderers import families
from tests.runners import tool_runner


@pytest.mark.parametrize("name", families.TOKENIZERS)
async def test_parallel_calls_a_format_error_and_an_answer(tmp_path: Path, name: str) -> None:
    renderer = families.renderer(name)
    calls = (
        ToolCall(name="add", arguments={"a": 2, "b": 3}),
        ToolCall(name="say", arguments={"text": "x"}),
        ToolCall(name="sum", arguments={}),
    )
    eos = renderer.decode(renderer.stop_token_ids[:1])
    script = [renderer.write(ParsedTurn(calls=calls)), eos, renderer.write(ParsedTurn(answer="5"))]
    contexts: list[str] = []

    def say(key: SeedKey, context: str) -> str:
        contexts.append(context)
        return script[key.turn]

    agent = tool_runner(
        engine=ScriptedEngine(encode=renderer.encode_action, decode=renderer.decode, script=say, max_context=50_000),
        renderer=renderer,
        tools={"add": Adder(), "say": Saying(lambda text, environment: ToolResult.failed("no <|im_end|>"))},
        workspaces=Workspaces(tmp_path),
        max_context=None,
    )
    episode = await agent.run(TASK, sample_index=0, stream="s", sampling=SamplingParams(max_tokens=2000))
    assert (episode.exit, episode.answer) == (Exit.ANSWERED, "5")
    assert [(r.name, r.outcome, r.turn) for r in episode.tool_records] == [
        ("add", Outcome.SUCCESS, 0),
        ("say", Outcome.RUNTIME_ERROR, 0),
        ("sum", Outcome.TOOL_NOT_FOUND, 0),
    ]
    assert episode.metrics["format_error_turns"] == 1.0
    [branch] = episode.branches
    assert [s.sampled for s in branch.segments] == [False, True] * 3
    assert [renderer.encode_action(text) for text in script] == [s.token_ids for s in branch.segments if s.sampled]
    told = branch.segments[2].text
    texts = ["5", "error: no <|im_end|>", "error: there is no tool sum; there are add, say"]
    places = [told.index(text) for text in texts]
    assert places == sorted(places)
    for before, after in pairwise(contexts):
        assert after.startswith(before)


@pytest.mark.parametrize("name", families.TOKENIZERS)
async def test_a_result_costs_no_more_than_it_may_however_it_is_written(tmp_path: Path, name: str) -> None:
    """Where results are JSON strings, a control character is six characters."""
    renderer = families.renderer(name)
    call = ToolCall(name="say", arguments={"text": "x"})
    script = [renderer.write(ParsedTurn(calls=(call,))), renderer.write(ParsedTurn(answer="5"))]
    agent = tool_runner(
        engine=ScriptedEngine(
            encode=renderer.encode_action,
            decode=renderer.decode,
            script=lambda key, context: script[key.turn],
            max_context=50_000,
        ),
        renderer=renderer,
        tools={"say": Saying(lambda text, environment: ToolResult.ok('\x01"\n' * 5000))},
        workspaces=Workspaces(tmp_path),
        max_context=None,
        max_tool_output_tokens=500,
    )
    episode = await agent.run(TASK, sample_index=0, stream="s", sampling=SamplingParams(max_tokens=2000))
    _, sampled, told, _ = episode.branches[0].segments
    around = renderer.reply(
        [ToolReply(call=renderer.parse(sampled.token_ids).calls[0], text="")], sampled=sampled.token_ids
    )
    assert episode.tool_records[0].was_cut
    assert 480 <= len(told.token_ids) - len(around) <= 500
