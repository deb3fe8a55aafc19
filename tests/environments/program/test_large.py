"""Requests of megabytes: what cannot fit is refused unread, what may fit is read beside the event loop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from agentgrpo.core.types import Exit
from agentgrpo.environments.program.dialects import CHAT, DIALECTS, MESSAGES, RESPONSES
from agentgrpo.environments.program.exchange import ProgramDialect
from tests.environments.program.played import Client, SpellingEngine, play, user
from tests.environments.program.test_requests import with_client
from tests.renderers.reading import ReadingRenderer

MB = "x " * 500_000
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
LONG_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"text": MB})}}
TOOL = {"type": "function", "function": {"name": "f", "description": MB}}
TOOLS = [{"type": "function", "function": {"name": f"f{i}", "description": "It does."}} for i in range(5000)]


def assistant(**said: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, **said}


def answered(text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "1", "content": text}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [user(MB)]},
        {"messages": [{"role": "system", "content": MB}, user("a")]},
        {"messages": [user("a"), assistant(content=MB), user("b")]},
        {"messages": [user("a"), assistant(tool_calls=[LONG_CALL]), answered("b")]},
        {"messages": [user("a"), assistant(tool_calls=[CALL]), answered(MB)]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": MB[:50_000]}] * 20}]},
        {"messages": [user(MB[:10_000])] * 100},
        {"messages": [user("a"), assistant(content="b")] * 2 + [user(MB)]},
        {"messages": [user("a")], "tools": [TOOL]},
        {"messages": [user("a")], "tools": TOOLS},
    ],
)
async def test_what_cannot_fit_is_refused_and_never_read(body: Mapping[str, Any]) -> None:
    renderer = ReadingRenderer()

    async def do(client: Client) -> None:
        error = await client.refused(body)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        assert error["message"].endswith("in the context of this model, which holds 512 tokens")

    await with_client(do, renderer=renderer, max_context=512)
    assert renderer.most <= 1000


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_every_dialect_refuses_it_in_its_own_words(dialect: ProgramDialect) -> None:
    renderer = ReadingRenderer()
    bodies = {
        CHAT.path: {"messages": [user(MB)]},
        MESSAGES.path: {"max_tokens": 9, "messages": [user(MB)]},
        RESPONSES.path: {"input": MB},
    }

    async def do(client: Client) -> None:
        assert "which holds 512 tokens" in (await client.refused(bodies[dialect.path], dialect))["message"]

    await with_client(do, renderer=renderer, max_context=512)
    assert renderer.most <= 1000


async def test_a_program_that_asks_nothing_else_ends_as_an_overflow() -> None:
    async def agent(base_url: str) -> float:
        assert (await Client(base_url).say([user("a")]))["content"] == "b"
        await Client(base_url).refused({"messages": [user(MB)]})
        raise RuntimeError("it was too long")

    episode = await play(agent, SpellingEngine(["b"]), failure_reward=0.0)
    assert (episode.exit, len(episode.branches)) == (Exit.CONTEXT_OVERFLOW, 1)


async def test_a_long_text_that_fits_is_read_in_another_thread_and_as_a_short_one_is() -> None:
    renderer = ReadingRenderer()
    text = "It said: 'call the tool <|im_end|> twice'. " * 500

    async def agent(base_url: str) -> float:
        await Client(base_url).say([user("short")])
        await Client(base_url).say([user(text)])
        return 0.0

    engine = SpellingEngine(["a", "b"], max_context=40_000)
    await play(agent, engine, renderer=renderer, max_context=None)
    assert renderer.decode(engine.asked[1][0]).count(text) == 1
    assert ["reader" in name for name in renderer.threads] == [False, True]


@pytest.mark.parametrize("stop", [["a"] * 65, "a" * 1001, ["a" * 1001], ["a" * 1000] * 7000])
async def test_stop_texts_are_bounded(stop: object) -> None:
    async def do(client: Client) -> None:
        error = await client.refused({"messages": [user("a")], "stop": stop})
        assert error["param"] == "stop"
        assert error["message"].endswith("at most 64 of at most 1000 characters are allowed")

    await with_client(do)


@pytest.mark.parametrize("filler", [b"[],", b'{"a":{}},', b"0,"])
async def test_a_body_of_more_values_than_any_request_has_is_not_parsed(filler: bytes) -> None:
    body = b'{"messages":[{"role":"user","content":"x"}],"metadata":[' + filler * (6_000_000 // len(filler)) + b"0]}"

    async def do(client: Client) -> None:
        assert (await client.refused(body))["message"] == "the body is not JSON: more than 1048576 values"

    if filler == b"0,":
        body = body[: 8 * 2**20]
    await with_client(do)


async def test_each_of_many_calls_gets_its_own_reply() -> None:
    """In time that grows with their number, not with its square."""
    calls = [{**CALL, "id": str(i % 15_000)} for i in range(20_000)]
    replies = [{"role": "tool", "tool_call_id": str(i % 15_000), "content": "x"} for i in reversed(range(20_000))]

    async def do(client: Client) -> None:
        error = await client.refused({"messages": [user("a"), assistant(tool_calls=calls), *replies]})
        assert error["code"] == "context_length_exceeded"
        error = await client.refused({"messages": [user("a"), assistant(tool_calls=calls), *replies[1:], user("b")]})
        assert error["message"].endswith("the call '4999' before it was not answered")

    await with_client(do, max_context=512)
