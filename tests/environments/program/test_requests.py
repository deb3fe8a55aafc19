"""The endpoint's manners: OpenAI's shapes, errors that name what is wrong, nothing sampled for what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest

from agentgrpo.core.errors import EngineError
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.program.dialects import CHAT, DIALECTS, MESSAGES, RESPONSES
from agentgrpo.environments.program.exchange import ChatRefused, ProgramDialect
from tests.environments.program.played import ADD, ADDS, END, Client, SpellingEngine, play, result, user

SAMPLING = SamplingParams(max_tokens=200)


async def with_client(do: Callable[[Client], Awaitable[None]], *script: str, **options: Any) -> SpellingEngine:
    """One episode of a program that does this, and then asks once more, so that there is an episode."""

    async def agent(base_url: str) -> float:
        await do(Client(base_url))
        await Client(base_url).say([user("the end")])
        return 0.0

    engine = SpellingEngine([*script, f"end{END}"])
    await play(agent, engine, **options)
    assert len(engine.asked) == len(script) + 1
    return engine


async def test_an_answer_in_openais_shape() -> None:
    async def do(client: Client) -> None:
        answer = (await client.post({"model": "mine", "messages": [user("a")], "tools": [ADD]})).json()
        assert answer.pop("created") > 0
        arguments = '{"a": 1, "b": 2}'
        call = {"id": "call_0_0", "type": "function", "function": {"name": "add", "arguments": arguments}}
        assert answer == {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "model": "mine",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": None, "tool_calls": [call]},
                    "logprobs": None,
                    "finish_reason": "tool_calls",
                }
            ],
            "usage": answer["usage"],
        }
        usage = answer["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        short = (await client.post({"messages": [user("b")], "max_completion_tokens": 3})).json()
        assert short["choices"][0]["message"] == {"role": "assistant", "content": "lon"}
        assert short["choices"][0]["finish_reason"] == "length"
        assert short["usage"]["completion_tokens"] == 3
        async with httpx.AsyncClient(trust_env=False, verify=False) as browser:
            models = await browser.get(f"{client.base_url}/models")
        assert [card["id"] for card in models.json()["data"]] == ["policy"]

    engine = await with_client(do, ADDS, "long")
    assert [sampling.max_tokens for _, sampling, _ in engine.asked] == [200, 3, 200]


async def test_a_stream_says_the_same_in_pieces() -> None:
    async def do(client: Client) -> None:
        body = {"messages": [user("a")], "tools": [ADD], "stream": True, "stream_options": {"include_usage": True}}
        answer = await client.post(body)
        assert answer.headers["content-type"].startswith("text/event-stream")
        *events, end = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        assert end == "[DONE]"
        chunks = [json.loads(event) for event in events]
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert deltas[1] == {"content": "So:"}
        [call] = deltas[2]["tool_calls"]
        assert (call["index"], call["function"]["name"]) == (0, "add")
        assert deltas[3:] == [{}]
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None, None, None, "tool_calls"]
        assert [chunk["usage"] is None for chunk in chunks] == [True, True, True, True, False]

    await with_client(do, f"So:{ADDS}")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"temperature": 0.5}, "temperature"),
        ({"top_p": 0.9}, "top_p"),
        ({"n": 2}, "n"),
        ({"top_k": 5}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logprobs": True}, "logprobs"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stream": 1}, "stream"),
        ({"messages": []}, "messages"),
        ({"messages": [user("a"), {"role": "assistant", "content": "b"}]}, "messages"),
        ({"messages": [{"role": ["user"], "content": "b"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]"),
        ({"messages": [{"role": "tool", "tool_call_id": "x", "content": "b"}]}, "messages[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": [1]}}}]}, "tools[0]"),
    ],
)
def test_what_would_change_the_sampling_or_cannot_be_read_is_refused_by_name(
    changed: Mapping[str, Any], named: str
) -> None:
    body = {"model": "m", "messages": [user("a")], "user": "u", "n": 1, "temperature": 1, "top_p": 1.0, "stop": None}
    CHAT.request_of(json.dumps(body).encode(), SAMPLING, (), {})
    with pytest.raises(ChatRefused) as refused:
        CHAT.request_of(json.dumps({**body, **changed}).encode(), SAMPLING, (), {})
    assert refused.value.param == named
    if (
        "." not in named
        and "[" not in named
        and named not in (*("messages", "max_tokens", "stop", "stream", "parallel_tool_calls"),)
    ):
        assert f"environment.ignore=[{named}]" in str(refused.value)
        CHAT.request_of(json.dumps({**body, **changed}).encode(), SAMPLING, (named,), {})


NEUTRAL: Mapping[str, Mapping[str, Any]] = {
    CHAT.path: {
        "messages": [user("a")],
        "n": 1,
        "seed": 7,
        "reasoning_effort": "medium",
        "verbosity": "low",
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "frequency_penalty": 0,
        "repetition_penalty": 1.0,
        "min_p": 0.0,
        "top_k": -1,
        "logit_bias": {},
        "logprobs": False,
        "response_format": {"type": "text"},
        "chat_template_kwargs": {},
    },
    RESPONSES.path: {
        "input": "a",
        "reasoning": {"effort": "high", "summary": "auto"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "parallel_tool_calls": False,
        "temperature": 1,
    },
    MESSAGES.path: {
        "messages": [user("a")],
        "max_tokens": 9,
        "top_k": 0,
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    },
}


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.path)
def test_what_changes_nothing_is_taken(dialect: ProgramDialect) -> None:
    neutral = NEUTRAL[dialect.path]
    least = {k: neutral[k] for k in ("messages", "input", "max_tokens") if k in neutral}
    bare = dialect.request_of(json.dumps(least).encode(), SAMPLING, (), {})
    for key, value in neutral.items():
        request = dialect.request_of(json.dumps({**least, key: value}).encode(), SAMPLING, (), {})
        assert request == replace(bare, is_parallel=request.is_parallel), key
        assert request.is_parallel or key in ("parallel_tool_calls", "tool_choice")
    together = dialect.request_of(json.dumps(neutral).encode(), SAMPLING, (), {})
    assert together == replace(bare, is_parallel=together.is_parallel)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.path)
def test_another_temperature_is_refused_with_the_reason_or_overlooked_with_what_else_frameworks_set(
    dialect: ProgramDialect,
) -> None:
    body = {**NEUTRAL[dialect.path], "temperature": 0.1, "top_p": 0.95}
    with pytest.raises(ChatRefused, match=r"temperature=0\.1: this run samples with temperature=1, .*ignore=common"):
        dialect.request_of(json.dumps(body).encode(), SAMPLING, (), {})
    dialect.request_of(json.dumps({**body, "top_k": 20}).encode(), SAMPLING, ("common",), {})
    with pytest.raises(ChatRefused, match="unknown parameter 'moon'"):
        dialect.request_of(json.dumps({**body, "moon": 1}).encode(), SAMPLING, ("common",), {})


def test_the_run_s_own_top_k_is_the_one_that_is_taken() -> None:
    body = {"messages": [user("a")], "top_k": 20}
    CHAT.request_of(json.dumps(body).encode(), SamplingParams(top_k=20), (), {})
    with pytest.raises(ChatRefused, match="top_k=-1: this run samples with top_k=20"):
        CHAT.request_of(json.dumps({**body, "top_k": -1}).encode(), SamplingParams(top_k=20), (), {})


CALL = ADDS.removesuffix(END)
TOOLS: Mapping[str, Any] = {
    CHAT.path: {"messages": [user("a")], "tools": [ADD]},
    RESPONSES.path: {"input": "a", "tools": [{"type": "function", "name": "add"}]},
    MESSAGES.path: {"messages": [user("a")], "tools": [{"name": "add", "input_schema": {}}], "max_tokens": 100},
}


def told_in(document: Mapping[str, Any], dialect: ProgramDialect) -> tuple[str, int, str]:
    """The text of an answer, how many calls it has, and why it ended."""
    if dialect is CHAT:
        [choice] = document["choices"]
        return choice["message"]["content"] or "", len(choice["message"].get("tool_calls", ())), choice["finish_reason"]
    blocks = document["output"] if dialect is RESPONSES else document["content"]
    texts = [
        b["content"][0]["text"] if dialect is RESPONSES else b["text"]
        for b in blocks
        if "call" not in b["type"] and b["type"] != "tool_use"
    ]
    calls = sum(b["type"] in ("function_call", "tool_use") for b in blocks)
    return "".join(texts), calls, document["status"] if dialect is RESPONSES else document["stop_reason"]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.path)
async def test_a_call_where_none_may_be_is_text(dialect: ProgramDialect) -> None:
    none = {"type": "none"} if dialect is MESSAGES else "none"

    async def do(client: Client) -> None:
        body = TOOLS[dialect.path]
        bare = {key: value for key, value in body.items() if key != "tools"}
        for asked in (bare, {**body, "tools": []}, {**body, "tool_choice": none}):
            answer = (await client.post(asked, path=dialect.path)).json()
            assert told_in(answer, dialect)[:2] == (f"Well.\n{CALL}", 0)
        assert told_in((await client.post(body, path=dialect.path)).json(), dialect)[:2] == ("Well.", 1)

    await with_client(do, *[f"Well.\n{ADDS}"] * 4)


async def test_text_that_spells_a_call_is_gone_on_with_as_it_was_sampled() -> None:
    async def agent(base_url: str) -> float:
        client, messages = Client(base_url), [user("a")]
        for _ in range(2):
            messages = [*messages, await client.say(messages), user("and?")]
        return 0.0

    engine = SpellingEngine([ADDS, f"end{END}"])
    episode = await play(agent, engine)
    assert (episode.metrics["continued_share"], episode.metrics["unattributed_tokens"]) == (1.0, 0.0)
    assert [s.token_ids for s in episode.turns] == engine.answered


@pytest.mark.parametrize("dialect", [CHAT, MESSAGES], ids=lambda d: d.path)
@pytest.mark.parametrize(
    ("stop", "shown"),
    [('"b"', CALL.partition('"b"')[0]), ("</tool_call>", CALL.partition("</tool_call>")[0]), ("Well", "")],
)
async def test_a_stop_string_in_a_call_ends_it(dialect: ProgramDialect, stop: str, shown: str) -> None:
    async def do(client: Client) -> None:
        key = "stop" if dialect is CHAT else "stop_sequences"
        answer = (await client.post({**TOOLS[dialect.path], key: [stop]}, path=dialect.path)).json()
        assert told_in(answer, dialect) == (
            f"Well.\n{shown}" if shown else "",
            0,
            "stop" if dialect is CHAT else "stop_sequence",
        )

    await with_client(do, f"Well.\n{ADDS}")


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.path)
async def test_a_client_that_makes_one_call_a_turn_gets_the_first(dialect: ProgramDialect) -> None:
    async def do(client: Client) -> None:
        one = (
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
            if dialect is MESSAGES
            else {"parallel_tool_calls": False}
        )
        answer = (await client.post({**TOOLS[dialect.path], **one}, path=dialect.path)).json()
        assert told_in(answer, dialect)[1] == 1

    await with_client(do, f"{CALL}\n{ADDS}")


async def test_a_call_that_was_not_made_is_answered_as_such() -> None:
    async def agent(base_url: str) -> float:
        client, one = Client(base_url), {"tools": [ADD], "parallel_tool_calls": False}
        said = await client.say([user("a")], **one)
        await client.say([user("a"), said, result(said, "3")], **one)
        return 0.0

    engine = SpellingEngine([f"{CALL}\n{ADDS}", f"end{END}"])
    episode = await play(agent, engine)
    assert episode.metrics["continued_share"] == 1.0
    [_, _, replies, _] = episode.branches[0].segments
    assert [replies.text.count(text) for text in ("3", "make one call at a time", "<tool_response>")] == [1, 1, 2]


async def test_every_error_has_openais_shape_and_nothing_is_sampled_for_it() -> None:
    async def do(client: Client) -> None:
        for body in (b"", b"{", b"[]", b"\xff", b'"\\ud800"', b"[" * 100_000, b"{" + b" " * (9 * 2**20) + b"}"):
            await client.refused(body)
        assert (await client.refused({"messages": [user("a")], "temperature": 0}))["param"] == "temperature"
        refused = await client.post({"messages": [user("a")]}, path="/completions")
        assert (refused.status_code, "allowed are" in refused.json()["error"]["message"]) == (404, True)
        other = Client(client.base_url.replace("/episodes/", "/episodes/x"))
        assert (await other.refused({"messages": [user("a")]}))["code"] == "episode_not_found"
        deep: dict[str, Any] = {}
        for _ in range(200):
            deep = {"properties": {"x": deep}}
        function = {"type": "function", "function": {"name": "f", "parameters": deep}}
        assert "nested" in (await client.refused({"messages": [user("a")], "tools": [function]}))["message"]
        unsampled = [user("a"), {"role": "assistant", "content": "<|im_end|>"}, user("b")]
        assert "control token" in (await client.refused({"messages": unsampled}))["message"]

    engine = await with_client(do)
    assert len(engine.answered) == 1


async def test_a_cut_connection_samples_nothing() -> None:
    async def do(client: Client) -> None:
        url = httpx.URL(client.base_url)
        _, writer = await asyncio.open_connection(url.host, url.port)
        head = f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
        writer.write(head.encode() + b'{"messages": [')
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    engine = await with_client(do)
    assert len(engine.answered) == 1, "that of the end alone"


async def test_pages_of_other_sites_sample_nothing_and_pay_nothing() -> None:
    """Whoever has the URL: a Host or an Origin that is not this machine's is refused."""

    async def do(client: Client) -> None:
        body = {"messages": [user("a")], "reward": 1}
        async with httpx.AsyncClient(trust_env=False) as anybody:
            for path in ("/chat/completions", "/models", "/../reward"):
                for name, value in (("Host", "evil.example"), ("Origin", "http://evil.example"), ("Origin", "null")):
                    refused = await anybody.post(f"{client.base_url}{path}", json=body, headers={name: value})
                    what = "name" if name == "Host" else "page"
                    said = f"{name} {value!r} is no {what} of this server; ask it as localhost"
                    assert (refused.status_code, refused.json()) == (403, {"error": said})

    engine = await with_client(do)
    assert len(engine.answered) == 1, "that of the end alone"


async def test_parallel_calls_are_answered_in_any_order() -> None:
    two = ADDS.removesuffix(END) + "\n" + ADDS

    async def do(client: Client) -> None:
        messages = [user("a")]
        called = await client.say(messages, tools=[ADD])
        missing = [*messages, called, result(called, "first", 0)]
        assert (
            "was not answered" in (await client.refused({"messages": [*missing, user("b")], "tools": [ADD]}))["message"]
        )
        await client.say([*messages, called, result(called, "second", 1), result(called, "first", 0)], tools=[ADD])

    engine = await with_client(do, two, f"x{END}")
    assert len(engine.asked) == 3


async def test_an_episode_that_is_over_answers_nobody() -> None:
    kept: list[Client] = []
    started = asyncio.Event()

    async def wait() -> None:
        started.set()
        await asyncio.sleep(30 if len(engine.asked) == 2 else 0)

    async def agent(base_url: str) -> float:
        kept.append(Client(base_url))
        await kept[0].say([user("a")])
        started.clear()
        left_behind.append(asyncio.ensure_future(kept[0].post({"messages": [user("b")]})))
        await started.wait()
        return 1.0

    left_behind: list[asyncio.Task[httpx.Response]] = []
    engine = SpellingEngine(lambda context: f"x{END}", wait=wait)
    episode = await play(agent, engine)
    assert (await left_behind[0]).json()["error"]["code"] == "episode_not_found"
    assert len(engine.answered) == 1
    assert len(engine.stopped) == 1
    assert len(episode.turns) == 1
    with pytest.raises(httpx.ConnectError):  # nobody listens where no episode is open
        await kept[0].post({"messages": [user("c")]})


async def test_a_failure_of_the_engine_is_the_episodes_not_the_programs() -> None:
    async def agent(base_url: str) -> float:
        await Client(base_url).refused({"messages": [user("a")]})
        await asyncio.sleep(30)
        return 1.0

    def fails(context: str) -> str:
        raise EngineError("the server is gone", kind="transport")

    with pytest.raises(EngineError, match="the server is gone"):
        await play(agent, SpellingEngine(fails))


async def test_a_bug_of_ours_ends_the_run_and_not_as_an_error_of_the_programs() -> None:
    async def agent(base_url: str) -> float:
        await Client(base_url).refused({"messages": [user("a")]})
        await asyncio.sleep(30)
        return 1.0

    engine = SpellingEngine(())
    engine.max_context = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        await play(agent, engine)
