"""ARTIST's reward is of what a turn says, however a model family writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgrpo.core.messages import ParsedTurn
from agentgrpo.core.types import Episode, ToolCall
from agentgrpo.engines.base import SamplingParams
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.renderers.base import ToolRenderer
from agentgrpo.rewards.registry import TERMS
from agentgrpo.tools.workspace import Workspaces
from tests.environments.tools.scripted import TASK, Adder
from tests.renderers import families
from tests.runners import tool_runner

CALL = ToolCall(name="add", arguments={"a": 2, "b": 3})
ANSWER = ParsedTurn(answer="5")
FORMAT, TOOLS = TERMS["artist_format"](weight=1.0), TERMS["artist_tools"](weight=1.0)


async def played(renderer: ToolRenderer, folder: Path, *turns: ParsedTurn) -> Episode:
    script = [renderer.write(turn) for turn in turns]
    engine = ScriptedEngine(
        encode=renderer.encode_action,
        decode=renderer.decode,
        script=lambda key, context: script[key.turn],
        max_context=50_000,
    )
    runner = tool_runner(
        engine=engine, renderer=renderer, tools={"add": Adder()}, workspaces=Workspaces(folder), max_context=None
    )
    return await runner.run(TASK, sample_index=0, stream="s", sampling=SamplingParams(max_tokens=2000))


def thinking(renderer: ToolRenderer) -> ParsedTurn:
    """A thought and a call: the thought stands where the family has a place for it, else before the call."""
    turn = ParsedTurn(reasoning="I add them.", calls=(CALL,))
    kept = renderer.parse(renderer.encode_action(renderer.write(turn))).reasoning
    return turn if kept else ParsedTurn(content="I add them.", calls=(CALL,))


@pytest.mark.parametrize("name", families.TOKENIZERS)
async def test_the_same_ideal_earns_the_same_in_every_renderer(name: str, tmp_path: Path) -> None:
    renderer = families.renderer(name)
    ideal = await played(renderer, tmp_path, thinking(renderer), ANSWER)
    assert (ideal.answer, FORMAT(ideal, 1.0), TOOLS(ideal, 1.0)) == ("5", 1.0, 1.0)
    hasty = await played(renderer, tmp_path, ParsedTurn(calls=(CALL,)), ANSWER)
    assert FORMAT(hasty, 1.0) == 3 * 0.125
    guess = await played(renderer, tmp_path, ANSWER)
    assert FORMAT(guess, 1.0) == 0.125
