"""Three dialects, one recorder: what is said in any of them is the same request, and is answered in its own shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.program.dialects import CHAT, DIALECTS, MESSAGES, RESPONSES
from agentgrpo.environments.program.exchange import ChatRefused, ProgramDialect
from tests.environments.program.played import ADD, ADDS, END, Client, SpellingEngine, play, result, spelled, user

SAMPLING = SamplingParams(max_tokens=200)
SCHEMA = {"type": "object", "properties": {}}
TWO = ADDS.removesuffix(END) + "\n" + ADDS
SCRIPT = [f"So:{TWO}", f"The sum is 3.{END}", "cut off"]


async def in_chat(base_url: str) -> float:
    client = Client(base_url)
    messages = [{"role": "system", "content": "Be brief."}, user("1+2?")]
    called = await client.say(messages, tools=[ADD])
    messages += [called, result(called, "3", 0), result(called, "4", 1)]
    messages += [await client.say(messages, tools=[ADD]), user("Sure?")]
    await client.say(messages, tools=[ADD], max_tokens=7)
    return 1.0


async def in_responses(base_url: str) -> float:
    client, said = Client(base_url), [user("1+2?")]
    body = {"instructions": "Be brief.", "tools": [{"type": "function", "name": "add", "parameters": SCHEMA}]}
    called = (await client.post({**body, "input": said}, path="/responses")).json()["output"]
    results = [
        {"type": "function_call_output", "call_id": called[1]["call_id"], "output": "3"},
        {
            "type": "function_call_output",
            "call_id": called[2]["call_id"],
            "output": [{"type": "input_text", "text": "4"}],
        },
    ]
    said += [*called, *results]
    said += (await client.post({**body, "input": said}, path="/responses")).json()["output"]
    said.append({"role": "user", "content": [{"type": "input_text", "text": "Sure?"}]})
    assert (await client.post({**body, "input": said, "max_output_tokens": 7}, path="/responses")).status_code == 200
    return 1.0


async def in_references(base_url: str) -> float:
    """As clients of a server do that stores what it has said: nothing of it is sent again."""
    client, said = Client(base_url), [user("1+2?")]
    body = {"instructions": "Be brief.", "store": True}
    body |= {"tools": [{"type": "function", "name": "add", "parameters": SCHEMA}]}
    called = (await client.post({**body, "input": said}, path="/responses")).json()["output"]
    said += [{"type": "item_reference", "id": item["id"]} for item in called]
    said += [
        {"type": "function_call_output", "call_id": item["call_id"], "output": output}
        for item, output in zip(called[1:], "34", strict=True)
    ]
    [answer] = (await client.post({**body, "input": said}, path="/responses")).json()["output"]
    said += [{"type": "item_reference", "id": answer["id"]}, user("Sure?")]
    assert (await client.post({**body, "input": said, "max_output_tokens": 7}, path="/responses")).status_code == 200
    return 1.0


async def in_previous(base_url: str) -> float:
    client = Client(base_url)
    body = {"instructions": "Be brief.", "tools": [{"type": "function", "name": "add", "parameters": SCHEMA}]}
    first = (await client.post({**body, "input": "1+2?"}, path="/responses")).json()
    calls = [item for item in first["output"] if item["type"] == "function_call"]
    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": output}
        for call, output in zip(calls, "34", strict=True)
    ]
    asked = {**body, "previous_response_id": first["id"], "input": outputs}
    second = (await client.post(asked, path="/responses")).json()
    asked = {**body, "previous_response_id": second["id"], "input": "Sure?", "max_output_tokens": 7}
    assert (await client.post(asked, path="/responses")).status_code == 200
    return 1.0


async def in_messages(base_url: str) -> float:
    client, said = Client(base_url.removesuffix("/v1")), [user("1+2?")]
    body = {"system": "Be brief.", "max_tokens": 200, "tools": [{"name": "add", "input_schema": SCHEMA}]}
    called = (await client.post({**body, "messages": said}, path="/v1/messages")).json()["content"]
    results = [
        {"type": "tool_result", "tool_use_id": called[1]["id"], "content": "3"},
        {"type": "tool_result", "tool_use_id": called[2]["id"], "content": [{"type": "text", "text": "4"}]},
    ]
    said += [{"role": "assistant", "content": called}, user(results)]  # type: ignore[arg-type]
    answer = (await client.post({**body, "messages": said}, path="/v1/messages")).json()["content"]
    said += [{"role": "assistant", "content": answer}, user("Sure?")]
    assert (await client.post({**body, "messages": said, "max_tokens": 7}, path="/v1/messages")).status_code == 200
    return 1.0


async def test_a_conversation_is_the_same_in_every_dialect() -> None:
    asked, branches = [], []
    for agent in (in_chat, in_responses, in_messages, in_references, in_previous):
        engine = SpellingEngine(SCRIPT)
        episode = await play(agent, engine)
        asked.append(engine.asked)
        branches.append(episode.branches)
        assert episode.metrics["continued_share"] == 1.0
        assert [s.token_ids for s in episode.turns] == engine.answered
    assert [each == asked[0] for each in asked] == [True] * 5
    assert [each == branches[0] for each in branches] == [True] * 5
    assert [sampling.max_tokens for _, sampling, _ in asked[0]] == [200, 200, 7]


async def test_a_conversation_may_change_its_dialect() -> None:
    async def agent(base_url: str) -> float:
        client = Client(base_url)
        said = [user("a"), await client.say([user("a")]), user("b")]
        assert (await client.post({"input": said}, path="/responses")).status_code == 200
        return 1.0

    assert (await play(agent, SpellingEngine([f"x{END}"] * 2))).metrics["continued_share"] == 1.0


async def answered(dialect: ProgramDialect, body: Mapping[str, Any], turn: str) -> Any:
    """The document, or the events (name, data) where the answer is streamed."""
    found: list[Any] = []

    async def agent(base_url: str) -> float:
        answer = await Client(base_url).post(body, path=dialect.path)
        assert answer.status_code == 200, answer.text
        if not body.get("stream"):
            found.append(answer.json())
            return 0.0
        assert answer.headers["content-type"].startswith("text/event-stream")
        for event in answer.text.split("\n\n")[:-1]:
            name, data = (line.partition(": ")[2] for line in event.split("\n"))
            found.append((name, json.loads(data)))
        return 0.0

    await play(agent, SpellingEngine([turn]))
    return found if body.get("stream") else found[0]


ASKED = {"model": "mine", "input": "a", "tools": [{"type": "function", "name": "add"}]}
MESSAGED = {"model": "mine", "messages": [user("a")], "max_tokens": 99, "tools": [{"name": "add", "input_schema": {}}]}
ARGUMENTS = '{"a": 1, "b": 2}'


async def test_an_answer_in_the_shape_of_responses() -> None:
    answer = await answered(RESPONSES, ASKED, f"So:{ADDS}")
    text = {"type": "output_text", "text": "So:", "annotations": [], "logprobs": []}
    assert answer["output"] == [
        {"type": "message", "id": "msg_0", "role": "assistant", "status": "completed", "content": [text]},
        {
            "type": "function_call",
            "id": "fc_0_0",
            "call_id": "call_0_0",
            "name": "add",
            "arguments": ARGUMENTS,
            "status": "completed",
        },
    ]
    assert (answer["object"], answer["status"], answer["model"]) == ("response", "completed", "mine")
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    cut = await answered(RESPONSES, {"input": "a", "max_output_tokens": 3}, "long")
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (cut["output"][0]["content"][0]["text"], cut["usage"]["output_tokens"]) == ("lon", 3)


async def test_a_stream_of_responses_says_the_same_in_pieces() -> None:
    events = await answered(RESPONSES, {**ASKED, "stream": True}, f"So:{ADDS}")
    assert [name for name, _ in events] == [
        f"response.{name}"
        for name in (
            *("created", "in_progress"),
            *("output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"),
            *("output_item.done", "output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
            *("output_item.done", "completed"),
        )
    ]
    assert [data["type"] for _, data in events] == [name for name, _ in events]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert (events[4][1]["delta"], events[9][1]["delta"]) == ("So:", ARGUMENTS)
    whole = await answered(RESPONSES, ASKED, f"So:{ADDS}")
    assert {**events[-1][1]["response"], "created_at": 0} == {**whole, "created_at": 0}
    cut = await answered(RESPONSES, {**ASKED, "stream": True, "max_output_tokens": 3}, "long")
    assert cut[-1][0] == "response.incomplete"


async def test_an_answer_in_the_shape_of_messages() -> None:
    answer = await answered(MESSAGES, MESSAGED, f"So:{ADDS}")
    usage = answer.pop("usage")
    assert answer == {
        "id": "msg_0",
        "type": "message",
        "role": "assistant",
        "model": "mine",
        "content": [
            {"type": "text", "text": "So:", "citations": None},
            {"type": "tool_use", "id": "toolu_0_0", "name": "add", "input": {"a": 1, "b": 2}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
    }
    assert usage["output_tokens"] == len(spelled(f"So:{ADDS}"))
    for more, turn, ended in (
        ({}, f"x{END}", ("end_turn", None)),
        ({"max_tokens": 3}, "long", ("max_tokens", None)),
        ({"stop_sequences": ["no", "STOP"]}, "so STOP", ("stop_sequence", "STOP")),
    ):
        answer = await answered(MESSAGES, {**MESSAGED, **more}, turn)
        assert (answer["stop_reason"], answer["stop_sequence"]) == ended


async def test_a_stream_of_messages_says_the_same_in_pieces() -> None:
    events = await answered(MESSAGES, {**MESSAGED, "stream": True}, f"So:{ADDS}")
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert [name for name, _ in events] == ["message_start", *block, *block, "message_delta", "message_stop"]
    assert [data["type"] for _, data in events] == [name for name, _ in events]
    assert events[2][1]["delta"] == {"type": "text_delta", "text": "So:"}
    assert events[5][1]["delta"] == {"type": "input_json_delta", "partial_json": ARGUMENTS}
    assert events[7][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[7][1]["usage"]["output_tokens"] > 0


INPUT: dict[str, Any] = {"input": "a"}
MESSAGE: dict[str, Any] = {"messages": [user("a")], "max_tokens": 9}


@pytest.mark.parametrize(
    ("dialect", "changed", "named"),
    [
        (RESPONSES, {"temperature": 0.5}, "temperature"),
        (RESPONSES, {"previous_response_id": "resp_0"}, "previous_response_id"),
        (RESPONSES, {"conversation": "c"}, "conversation"),
        (RESPONSES, {"background": True}, "background"),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "a"}}}, "text"),
        (RESPONSES, {"tool_choice": {"type": "web_search"}}, "tool_choice"),
        (RESPONSES, {"tool_choice": "required"}, "tool_choice"),
        (RESPONSES, {"max_tool_calls": 1}, "max_tool_calls"),
        (RESPONSES, {"max_output_tokens": "9"}, "max_output_tokens"),
        (RESPONSES, {"tools": [{"type": "web_search"}]}, "tools[0]"),
        (RESPONSES, {"input": []}, "input"),
        (RESPONSES, {"input": 5}, "input"),
        (RESPONSES, {"input": [user("a"), None]}, "input[1]"),
        (RESPONSES, {"include": ["message.output_text.logprobs"]}, "include"),
        (RESPONSES, {"input": None, "instructions": "a"}, "input"),
        (RESPONSES, {"instructions": ["a"]}, "instructions"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        (RESPONSES, {"input": [{"role": "tool", "content": "x"}]}, "input[0]"),
        (RESPONSES, {"input": [user([{"type": "input_image"}])]}, "input[0]"),  # type: ignore[arg-type]
        (RESPONSES, {"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        (RESPONSES, {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0]"),
        (RESPONSES, {"input": [user("a"), {"role": "assistant", "content": "b"}]}, "input"),
        (MESSAGES, {"temperature": 0.5}, "temperature"),
        (MESSAGES, {"top_k": 5}, "top_k"),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        (MESSAGES, {"tool_choice": {"type": "any"}}, "tool_choice"),
        (MESSAGES, {"tool_choice": "auto"}, "tool_choice"),
        (MESSAGES, {"output_config": {"efort": "low"}}, "output_config"),
        (MESSAGES, {"mcp_servers": []}, "mcp_servers"),
        (MESSAGES, {"max_tokens": None}, "max_tokens"),
        (MESSAGES, {"stop_sequences": [""]}, "stop_sequences"),
        (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        (MESSAGES, {"tools": [{"input_schema": {}}]}, "tools[0].name"),
        (MESSAGES, {"messages": []}, "messages"),
        (MESSAGES, {"messages": [{"role": "system", "content": "a"}]}, "messages[0]"),
        (MESSAGES, {"messages": [user("a"), {"role": "assistant", "content": "b"}]}, "messages"),
        (MESSAGES, {"messages": [user([{"type": "image"}])]}, "messages[0]"),  # type: ignore[arg-type]
        (MESSAGES, {"messages": [user([{"type": "tool_use"}])]}, "messages[0]"),  # type: ignore[arg-type]
        (MESSAGES, {"messages": [user([{"type": "tool_result", "tool_use_id": "t"}])]}, "messages[0]"),  # type: ignore[arg-type]
        (MESSAGES, {"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, "messages[0]"),
        (MESSAGES, {"system": [{"type": "image"}]}, "system"),
    ],
)
def test_what_would_change_the_sampling_or_cannot_be_read_is_refused_by_name(
    dialect: ProgramDialect, changed: Mapping[str, Any], named: str
) -> None:
    silent = {"metadata": {}, "model": "m", "temperature": 1}
    body = {**silent, **(INPUT if dialect is RESPONSES else MESSAGE)}
    dialect.request_of(json.dumps(body).encode(), SAMPLING, (), {})
    with pytest.raises(ChatRefused) as refused:
        dialect.request_of(json.dumps({**body, **changed}).encode(), SAMPLING, (), {})
    assert refused.value.param == named


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_episode_that_is_not_there_is_said_in_the_dialect(dialect: ProgramDialect) -> None:
    async def agent(base_url: str) -> float:
        await Client(base_url).say([user("a")])
        other = Client(base_url.replace("/episodes/", "/episodes/x"))
        error = await other.refused({}, dialect)
        assert "no such episode" in error["message"]
        assert error["type"] == ("not_found_error" if dialect is MESSAGES else "invalid_request_error")
        lost = Client(base_url + "/nowhere")
        assert "allowed are" in (await lost.refused({}, dialect))["message"]
        return 0.0

    await play(agent, SpellingEngine([f"x{END}"]))


def test_thoughts_are_told_apart_and_not_sent_back() -> None:
    """What reasoning comes back as, in items and blocks, is not what the policy was asked with."""
    thought = {"type": "reasoning", "id": "rs_0", "summary": []}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]}
    body = {"input": [user("a"), thought, said, user("c")]}
    asked = RESPONSES.request_of(json.dumps(body).encode(), SAMPLING, (), {})
    blocks = [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "b"}]
    body = {"messages": [user("a"), {"role": "assistant", "content": blocks}, user("c")], "max_tokens": 9}
    other = MESSAGES.request_of(json.dumps(body).encode(), SAMPLING, (), {})
    plain = [user("a"), {"role": "assistant", "content": "b"}, user("c")]
    assert (
        asked.messages
        == other.messages
        == CHAT.request_of(json.dumps({"messages": plain}).encode(), SAMPLING, (), {}).messages
    )
