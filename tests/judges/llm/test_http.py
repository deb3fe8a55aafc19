"""The endpoint: what goes over the wire, the rate limit, and a key that is seen nowhere."""

from __future__ import annotations

import asyncio
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError, JudgeError
from agentgrpo.core.types import Message
from agentgrpo.judges.llm.completer import HttpCompleter, Reply
from agentgrpo.judges.llm.judge import LLMJudge
from tests.builders import task
from tests.judges.llm.models import endpoint, honest, served
from tests.retrieval.server import after, say

PROMPT = (Message(role="system", content="s"), Message(role="user", content="u"))
KEY = "sk-canary-5f2e8d1c"


def choice(text: Any, **more: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}}], **more}


def files_with(text: str, folder: Path) -> list[str]:
    assert any(folder.iterdir())
    return [p.name for p in folder.iterdir() if text.encode() in p.read_bytes()]


async def test_the_request_and_the_reply() -> None:
    usage = {"prompt_tokens": 11, "completion_tokens": 7}
    async with endpoint(say(choice("hello", usage=usage))) as server:
        completer = HttpCompleter(base_url=server.url + "/", model="m", max_tokens=9, extra={"seed": 3})
        assert await completer.complete(PROMPT) == Reply(text="hello", prompt_tokens=11, completion_tokens=7)
        assert server.heads[0].startswith("post /v1/chat/completions http/1.1")
        assert server.requests == [
            {
                "model": "m",
                "temperature": 0.0,
                "max_tokens": 9,
                "seed": 3,
                "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
            }
        ]
        await completer.close()


async def test_fields_can_be_left_out() -> None:
    async with endpoint(say(choice("x"))) as server:
        completer = HttpCompleter(base_url=server.url, extra={"max_tokens": None, "max_completion_tokens": 5})
        assert await completer.complete(PROMPT) == Reply(text="x")
        assert server.requests[0].keys() == {"temperature", "max_completion_tokens", "messages"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", None),
        ("json_object", {"type": "json_object"}),
        (
            "json_schema",
            {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": {"type": "object"}}},
        ),
    ],
)
async def test_an_endpoint_can_hold_replies_to_a_schema(name: Any, expected: Any) -> None:
    async with endpoint(say(choice("x"))) as server:
        completer = HttpCompleter(base_url=server.url, response_format=name)
        await completer.complete(PROMPT, {"type": "object"})
        await completer.complete(PROMPT)
        assert [request.get("response_format") for request in server.requests] == [expected, None]


async def test_the_judge_sends_the_schema_of_its_verdict() -> None:
    async with endpoint(served(honest)) as server:
        completer = HttpCompleter(base_url=server.url, response_format="json_schema")
        for strict in (False, True):
            await LLMJudge(completer=completer, strict=strict, control=False).grade(task(), ["Castin"])
        await LLMJudge(completer=completer).opinion(task(), ["Castin", "Orlin"])
        schemas = [request["response_format"]["json_schema"]["schema"] for request in server.requests]
    number, text = {"type": "number"}, {"type": "string"}
    assert [schema["properties"] for schema in schemas] == [
        {"score": number, "reason": text},
        {"score": number, "reason": text, "nonce": text},
        {"first": number, "second": number, "reason": text},
    ]
    assert all(s["required"] == list(s["properties"]) and s["additionalProperties"] is False for s in schemas)


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "hello"}],
        [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "hello"}],
        [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}],
    ],
)
async def test_a_content_in_parts_is_its_texts(content: Any) -> None:
    async with endpoint(say(choice(content))) as server:
        assert await HttpCompleter(base_url=server.url).complete(PROMPT) == Reply(text="hello")


async def test_a_reply_that_was_cut_while_the_model_thought_says_so() -> None:
    cut = {"message": {"content": None, "reasoning_content": "well"}, "finish_reason": "length"}
    async with endpoint(say({"choices": [cut]})) as server:
        with pytest.raises(JudgeError, match=r"cut short, so a larger completer\.max_tokens may help"):
            await HttpCompleter(base_url=server.url, retries=0).complete(PROMPT)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"choices": []},
        choice(None),
        choice(["x"]),
        choice([{"type": "thinking"}]),
        choice([]),
        {"choices": [{"text": "x"}]},
        [1],
        "x",
        5,
    ],
)
async def test_a_reply_without_text_is_garbage(body: Any) -> None:
    async with endpoint(say(body)) as server:
        with pytest.raises(JudgeError) as raised:
            await HttpCompleter(base_url=server.url, retries=0).complete(PROMPT)
        assert raised.value.kind == "garbage"


@pytest.mark.parametrize("usage", [None, [], {"prompt_tokens": "many", "completion_tokens": -1}])
async def test_a_strange_bill_counts_as_none(usage: Any) -> None:
    async with endpoint(say(choice("x", usage=usage))) as server:
        assert await HttpCompleter(base_url=server.url).complete(PROMPT) == Reply(text="x")


async def test_429_and_5xx_are_tried_again() -> None:
    plan = (say("", "429 Too Many Requests", "Retry-After: 0\r\n"), say("", "503 Busy"), say(choice("x")))
    async with endpoint(*plan) as server:
        assert await HttpCompleter(base_url=server.url, backoff_s=0.0).complete(PROMPT) == Reply(text="x")
        assert len(server.requests) == 3


async def test_the_rate_limit_counts_attempts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with endpoint(say("", "503 Busy"), say(choice("x"))) as server:
        completer = HttpCompleter(base_url=server.url, backoff_s=0.0, requests_per_minute=2)
        await completer.complete(PROMPT)
        third = asyncio.create_task(completer.complete(PROMPT))
        await asyncio.sleep(0.1)
        assert (third.done(), len(server.requests)) == (False, 2)
        third.cancel()
        with pytest.raises(asyncio.CancelledError):
            await third


async def test_waiting_for_the_rate_limit_is_no_timeout() -> None:
    async with endpoint(say(choice("x"))) as server:
        completer = HttpCompleter(base_url=server.url, requests_per_minute=1, timeout_s=0.5)
        completer._client._rate._window_s = 0.7
        assert [await completer.complete(PROMPT) for _ in range(2)] == [Reply(text="x")] * 2


async def test_a_call_waits_for_the_tokens_it_is_expected_to_use() -> None:
    async with endpoint(after(0.1, say(choice("x")))) as server:
        completer = HttpCompleter(base_url=server.url, tokens_per_minute=100, max_tokens=60)
        calls = [asyncio.create_task(completer.complete(PROMPT)) for _ in range(2)]
        await asyncio.wait_for(asyncio.shield(calls[0]), 60)
        await asyncio.sleep(0.2)  # time enough for a second request, were it allowed
        assert ([call.done() for call in calls], len(server.requests)) == ([True, False], 1)
        calls[1].cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_tokens_that_were_expected_and_not_used_are_given_back() -> None:
    async with endpoint(say(choice("x", usage={"prompt_tokens": 2, "completion_tokens": 1}))) as server:
        completer = HttpCompleter(base_url=server.url, tokens_per_minute=100, max_tokens=60)
        for _ in range(10):
            await asyncio.wait_for(completer.complete(PROMPT), 60)
        rate = completer._client._rate
        assert rate is not None
        assert sum(grant.tokens for grant in rate._granted) == 30


async def test_the_key_is_sent_and_seen_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    refused = say(f"the key {KEY} is not valid", "401 Unauthorized")
    caplog.set_level(logging.DEBUG)
    async with endpoint(served(honest), served(honest), refused) as server:
        completer = HttpCompleter(base_url=server.url, model="m", api_key_env="JUDGE_KEY")
        judge = LLMJudge(completer=completer, cache=tmp_path / "verdicts.sqlite")
        assert [v.score for v in await judge.grade(task(), ["Castin"])] == [1.0]
        with pytest.raises(JudgeError) as raised:
            await judge.grade(task(), ["Castin Vel"])
        assert all(f"authorization: bearer {KEY}" in head for head in server.heads)
        await judge.close()
    assert raised.value.kind == "http_4xx"
    assert "the key $JUDGE_KEY is not valid" in str(raised.value)
    seen = [str(raised.value), repr(raised.value.__cause__), caplog.text, completer.identity, repr(vars(completer))]
    assert [text for text in seen if KEY in text] == []
    assert KEY.encode() not in pickle.dumps(raised.value)
    assert files_with(KEY, tmp_path) == []


def test_a_key_that_is_not_there_is_a_mistake_before_anything_is_asked() -> None:
    with pytest.raises(ConfigError, match="the environment variable NO_SUCH_KEY is not set"):
        HttpCompleter(api_key_env="NO_SUCH_KEY")


def test_what_says_which_model_it_is() -> None:
    same = HttpCompleter(base_url="http://a/v1", model="m"), HttpCompleter(base_url="http://b/v1", model="m")
    assert same[0].identity == same[1].identity  # the same model, wherever it is served
    others = [
        HttpCompleter(base_url="http://a/v1"),
        HttpCompleter(base_url="http://b/v1"),
        HttpCompleter(model="n"),
        HttpCompleter(model="m", temperature=0.5),
        HttpCompleter(model="m", max_tokens=3),
        HttpCompleter(model="m", extra={"top_k": 3}),
        HttpCompleter(model="m", response_format="json_schema"),
    ]
    assert len({same[0].identity, *(o.identity for o in others)}) == 8
