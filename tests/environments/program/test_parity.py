"""A world driven as a program gives the tokens, seeds and answers that it gives as an environment of the house."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from agentgrpo.core.types import Episode, ToolCall
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.tools.environment import NO_ACTION
from agentgrpo.tools.calculator import Calculator
from agentgrpo.tools.toolbox import Toolbox
from agentgrpo.tools.workspace import Workspaces
from tests import builders
from tests.environments.program.played import END, RENDERER, Client, SpellingEngine, play, user
from tests.runners import tool_runner

CALCULATOR = Calculator()
TURNS = 5
CALLS = (
    '{"name": "calculator", "arguments": {"expression": "1+2"}}',
    '{"name": "calculator", "arguments": {"expression": "x"}}',
    '{"name": "abacus", "arguments": {}}',
)


def policy(seed: int) -> SpellingEngine:
    """Calls, two calls, a turn that is cut off, an answer: by chance, which the context and the seed decide."""

    def says(context: str) -> str:
        drawn = sha256(f"{seed} {context}".encode()).digest()
        calls = [f"<tool_call>\n{CALLS[byte % 3]}\n</tool_call>" for byte in drawn[1 : 1 + drawn[0] % 3]]
        return "\n".join([*calls, END]) if calls else "and so on" * 60 if drawn[9] % 3 else f"It is {drawn[2]}.{END}"

    return SpellingEngine(says)


async def agent(task: Any, base_url: str) -> str | None:
    """What environments.tools does, in a program that has the same tools."""
    client, messages = Client(base_url), [user(task["question"])]
    spec = CALCULATOR.spec
    function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    toolbox = Toolbox({spec.name: CALCULATOR}, count_tokens=len, timeout_s=9.0, max_output_tokens=500)
    async with Workspaces().open(builders.task("1+2?"), seed="") as workspace:
        for turn in range(TURNS):
            body = {"messages": messages, "tools": [{"type": "function", "function": function}]}
            [choice] = (await client.post(body)).json()["choices"]
            message = choice["message"]
            messages.append(message)
            if calls := message.get("tool_calls"):
                asked = [call["function"] for call in calls]
                made = [ToolCall(name=f["name"], arguments=json.loads(f["arguments"])) for f in asked]
                answers = await toolbox.call_all(made, workspace, turn=turn, parallel=True)
                for call, (reply, _) in zip(calls, answers, strict=True):
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": reply.text})
            elif choice["finish_reason"] == "length":
                messages.append(user(NO_ACTION))
            else:
                return str(message["content"])
    return None


async def as_environment(engine: SpellingEngine) -> Episode:
    runner = tool_runner(
        engine=engine, renderer=RENDERER, tools={"calculator": CALCULATOR}, workspaces=Workspaces(), max_turns=TURNS
    )
    return await runner.run(
        builders.task("1+2?", "3", id="t0"),
        sample_index=2,
        stream="train/3",
        sampling=SamplingParams(max_tokens=400),
    )


@pytest.mark.parametrize("seed", range(8))
async def test_a_world_as_a_program_is_the_world_as_an_environment(seed: int) -> None:
    ours, theirs = policy(seed), policy(seed)
    expected = await as_environment(ours)
    episode = await play(agent, theirs, sampling=SamplingParams(max_tokens=400))
    assert theirs.asked == ours.asked
    sampled = [s.token_ids for s in expected.turns]
    assert [s.token_ids for s in episode.turns] == sampled
    [branch], [other] = episode.branches, expected.branches
    assert branch.token_ids == other.token_ids[: len(branch.token_ids)]
    assert branch.loss_mask == other.loss_mask[: len(branch.loss_mask)]
    assert branch.logprobs == (other.logprobs or ())[: len(branch.token_ids)]
    if expected.answer is not None:
        assert episode.answer == expected.answer
    assert episode.metrics["continued_share"] == 1.0
