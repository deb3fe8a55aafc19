"""Structured output and forced calls through the endpoint, from a policy of random weights: nothing but the form makes
its answers valid."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from agentgrpo.core.types import Episode, EpisodeGroup, ScoredGroup
from agentgrpo.engines.base import SamplingParams
from agentgrpo.engines.remote.text import refuse_grammar
from agentgrpo.environments.program.dialects import MESSAGES, RESPONSES
from agentgrpo.grpo.samples import to_samples
from agentgrpo.records.trajectories import read_trajectories, write_trajectories
from agentgrpo.rollout.loop import PolicyRunner
from tests import builders
from tests.engines.test_grammar import engine_of, policy_of
from tests.environments.program.played import ADDS, END, Client, SpellingEngine, environments, play, user
from tests.renderers import families

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "maximum": 9}, "b": {"type": "integer", "maximum": 9}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
MULTIPLY = {"type": "function", "function": {**ADD["function"], "name": "multiply"}}
AS_PERSON = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}


async def held(family: str, do: Callable[[Client], Awaitable[None]]) -> Episode:
    """One episode of a program that does this with a policy of random weights."""

    async def agent(base_url: str) -> float:
        await do(Client(base_url))
        return 0.0

    made = environments(agent, renderer=families.renderer(family))
    runner = PolicyRunner(environment=made, engine=engine_of(family), renderer=made.renderer)
    sampling = SamplingParams(max_tokens=400)
    return await runner.run(builders.task("1+2?", "3", id="t0"), sample_index=0, stream="train/3", sampling=sampling)


@pytest.mark.parametrize("family", ["chatml", "llama3", "qwen3, opened"])
async def test_answers_are_of_the_schema_and_calls_are_of_the_tool_that_is_forced(family: str, tmp_path: Path) -> None:
    async def do(client: Client) -> None:
        answer = await client.say([user("who?")], response_format=AS_PERSON)
        person = json.loads(answer["content"])
        jsonschema.validate(person, PERSON)
        assert "tool_calls" not in answer
        both = [user("who?"), answer, user("add")]
        call = await client.say(
            both, tools=[ADD, MULTIPLY], tool_choice={"type": "function", "function": {"name": "add"}}
        )
        [made] = call["tool_calls"]
        assert made["function"]["name"] == "add"
        jsonschema.validate(json.loads(made["function"]["arguments"]), ADD["function"]["parameters"])
        either = await client.say([user("a")], tools=[ADD, MULTIPLY], tool_choice="required")
        assert either["tool_calls"][0]["function"]["name"] in ("add", "multiply")
        anything = await client.say([user("b")], response_format={"type": "json_object"}, max_tokens=400)
        assert anything["content"].lstrip().startswith("{")

    episode = await held(family, do)
    assert episode.failure is None, episode.failure
    assert [bool(s.grammar) for s in episode.turns] == [True] * 4
    group = ScoredGroup(group=EpisodeGroup(task=episode.task, episodes=(episode,)), rewards=(None,))
    samples = to_samples([group], [[1.0]])
    for sample, scores in policy_of(family).logprobs(samples):
        [(first, count, _)] = sample.grammars
        assert count == sum(sample.loss_mask)
        assert sample.rollout_logprobs is not None
        sampled = torch.tensor(sample.rollout_logprobs[first : first + count])
        assert float((scores - sampled).abs().max()) < 1e-4
    path = tmp_path / "000000.jsonl"
    write_trajectories(path, scored=[group], advantages=[[1.0]], dropped=[None], step=0, seed=0)
    [record] = read_trajectories(path)
    assert [b.grammars for b in record.branches] == [b.grammars for b in episode.branches]


async def test_the_other_dialects_hold_answers_too() -> None:
    tool = {"name": "add", "input_schema": ADD["function"]["parameters"]}
    flat = {"type": "function", **ADD["function"]}
    form = {"type": "json_schema", "name": "person", "schema": PERSON}

    async def do(client: Client) -> None:
        asked: dict[str, Any] = {"messages": [user("a")], "max_tokens": 400}
        reply = await client.post({**asked, "tools": [tool], "tool_choice": {"type": "any"}}, path=MESSAGES.path)
        [block] = reply.json()["content"]
        assert (block["type"], block["name"]) == ("tool_use", "add")
        jsonschema.validate(block["input"], tool["input_schema"])
        named = {"type": "tool", "name": "add"}
        reply = await client.post({**asked, "tools": [tool], "tool_choice": named}, path=MESSAGES.path)
        assert reply.json()["stop_reason"] == "tool_use"
        reply = await client.post({**asked, "output_config": {"format": form}}, path=MESSAGES.path)
        jsonschema.validate(json.loads(reply.json()["content"][0]["text"]), PERSON)
        reply = await client.post({"input": "a", "text": {"format": form}}, path=RESPONSES.path)
        [message] = reply.json()["output"]
        jsonschema.validate(json.loads(message["content"][0]["text"]), PERSON)
        forced = {"type": "function", "name": "add"}
        reply = await client.post({"input": "b", "tools": [flat], "tool_choice": forced}, path=RESPONSES.path)
        [call] = reply.json()["output"]
        jsonschema.validate(json.loads(call["arguments"]), ADD["function"]["parameters"])

    episode = await held("chatml", do)
    assert episode.failure is None, episode.failure
    assert [bool(s.grammar) for s in episode.turns] == [True] * 5


async def test_a_json_text_that_reads_like_a_call_is_a_text() -> None:
    """Llama 3 has no mark for calls: an object with a name would be one."""

    async def do(client: Client) -> None:
        answer = await client.say([user("a")], tools=[ADD], tool_choice="none", response_format=AS_PERSON)
        assert (answer["content"].startswith("{"), "tool_calls" in answer) == (True, False)

    episode = await held("llama3", do)
    assert episode.failure is None, episode.failure


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}}, "nothing"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tools on offer: add"),
        ({"tool_choice": "required"}, "tools on offer: none"),
    ],
)
async def test_a_form_that_cannot_be_is_refused_in_one_line(changed: dict[str, Any], problem: str) -> None:
    async def agent(base_url: str) -> float:
        error = await Client(base_url).refused({"messages": [user("a")], **changed})
        assert problem in error["message"]
        assert "\n" not in error["message"]
        await Client(base_url).say([user("b")])
        return 0.0

    episode = await play(agent, SpellingEngine([f"end{END}"]))
    assert episode.failure is None, episode.failure


async def test_an_engine_that_cannot_hold_a_turn_refuses_the_request_and_the_episode_goes_on() -> None:
    class Plain(SpellingEngine):
        async def generate(self, token_ids: Any, sampling: SamplingParams, key: Any) -> Any:
            refuse_grammar(sampling)
            return await super().generate(token_ids, sampling, key)

    async def agent(base_url: str) -> float:
        client = Client(base_url)
        error = await client.refused({"messages": [user("a")], "response_format": AS_PERSON})
        assert "need the built-in engine (engine=hf)" in error["message"]
        answer = await client.say([user("a")], tools=[ADD])
        assert answer["tool_calls"]
        return 0.0

    episode = await play(agent, Plain([ADDS]))
    assert (episode.failure, episode.metrics["refused_requests"]) == (None, 1.0)
