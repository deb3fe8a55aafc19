"""Whatever is sent to the endpoint, and however it ends: an answer or an error in the dialect's shape, and nothing that
was refused or given up counts as sampled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.program.dialects import CHAT, DIALECTS, MESSAGES, RESPONSES
from agentgrpo.environments.program.exchange import ChatRefused, ProgramDialect
from tests.environments.program.played import ADD, END, Client, SpellingEngine, assistant, error_in, play, user
from tests.thorough import examples

SAMPLING = SamplingParams(max_tokens=200)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTION = {"name": "add", "arguments": '{"a": 1}'}
BODIES: Mapping[str, Mapping[str, Any]] = {
    CHAT.path: {
        "model": "any",
        "messages": [
            {"role": "system", "content": "s"},
            user([{"type": "text", "text": "a"}]),  # type: ignore[arg-type]
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": FUNCTION}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "1"},
            assistant("b"),
            user("c"),
        ],
        "tools": [ADD],
        "tool_choice": "auto",
        "stream": False,
        "stream_options": {"include_usage": True},
        "stop": ["x"],
        "max_tokens": 9,
        "n": 1,
        "temperature": 1.0,
    },
    RESPONSES.path: {
        "model": "any",
        "instructions": "s",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "id": "r", "summary": []},
            {"type": "function_call", "call_id": "c", **FUNCTION},
            {"type": "function_call_output", "call_id": "c", "output": "1"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
            user("c"),
        ],
        "tools": [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": True}],
        "tool_choice": "auto",
        "stream": False,
        "max_output_tokens": 9,
        "text": {"format": {"type": "text"}},
        "temperature": 1.0,
    },
    MESSAGES.path: {
        "model": "any",
        "system": [{"type": "text", "text": "s"}],
        "messages": [
            user("a"),
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}}]},
            user([{"type": "tool_result", "tool_use_id": "c", "content": "1"}, {"type": "text", "text": "t"}]),  # type: ignore[arg-type]
            assistant("b"),
            user("c"),
        ],
        "tools": [{"name": "add", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto"},
        "stream": False,
        "stop_sequences": ["x"],
        "max_tokens": 9,
        "temperature": 1.0,
    },
}
"""By dialect: a request that has one of everything."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=4) | st.just("<|im_end|>"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to all that a body holds."""
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, each in inner for place in places(each, (*at, key)))]


def held(value: Any, place: Sequence[Any]) -> Any:
    for key in place:
        value = value[key]
    return value


def changed(value: Any, place: Sequence[Any], other: Any) -> Any:
    """A copy with something else in a place, or with nothing there."""
    if not place:
        return other
    copy: Any = dict(value) if isinstance(value, Mapping) else list(value)
    inner = changed(value[place[0]], place[1:], other)
    if inner is NOTHING:
        del copy[place[0]]
    else:
        copy[place[0]] = inner
    return copy


NOTHING = object()


@st.composite
def mangled(draw: st.DrawFn) -> tuple[ProgramDialect, bytes]:
    """A body in which something is missing, is something else or stands twice; cut off; or no body at all."""
    dialect = draw(st.sampled_from(DIALECTS))
    if draw(st.integers(0, 9)) == 0:
        return dialect, draw(st.binary(max_size=40))
    body: Any = BODIES[dialect.path]
    for _ in range(draw(st.integers(1, 3))):
        place, source = (draw(st.sampled_from(places(body))) for _ in range(2))
        twice = [held(body, place)] * 2
        other = draw(JSON | st.sampled_from([NOTHING, twice, held(body, source)]))
        body = changed(body, place, other) if place or other is not NOTHING else {}
    text = json.dumps(body).encode()
    return dialect, text[: draw(st.integers(0, len(text)))] if draw(st.integers(0, 9)) == 0 else text


@settings(max_examples=examples(2000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mangled())
def test_any_body_is_a_request_or_refused(sent: tuple[ProgramDialect, bytes]) -> None:
    dialect, body = sent
    with suppress(ChatRefused):  # and nothing else
        asked = dialect.request_of(body, SAMPLING, (), {})
        assert asked.messages[-1].role != "assistant"


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(mangled(), min_size=1, max_size=8))
def test_whatever_is_sent_is_answered_in_its_dialect(sent: list[tuple[ProgramDialect, bytes]]) -> None:
    """Over HTTP, to one episode: what was answered was sampled once, and nothing else."""
    answered = 0

    async def agent(base_url: str) -> float:
        nonlocal answered
        for dialect, body in sent:
            answer = await Client(base_url).post(body, path=dialect.path)
            answered += answer.status_code == 200
            if answer.status_code != 200:
                error_in(answer, dialect)
                assert answer.status_code < 500
        await Client(base_url).say([user("the end")])
        return 0.0

    engine = SpellingEngine(lambda context: f"x{END}")
    episode = asyncio.run(play(agent, engine))
    assert len(episode.turns) == len(engine.answered) == answered + 1
    assert sorted(s.token_ids for s in episode.turns) == sorted(engine.answered)
    assert episode.metrics["refused_requests"] == len(sent) - answered


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("key", ["model", None])
async def test_a_body_of_ten_megabytes_is_refused(dialect: ProgramDialect, key: str | None) -> None:
    async def agent(base_url: str) -> float:
        long = "x" * (10 * 2**20)
        body = json.dumps({**BODIES[dialect.path], key: long}) if key else long
        answer = await Client(base_url).post(body.encode(), path=dialect.path)
        assert answer.status_code == 413
        error_in(answer, dialect)
        await Client(base_url).say([user("the end")])
        return 0.0

    assert len((await play(agent, SpellingEngine([f"x{END}"]))).turns) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
async def test_a_connection_that_is_cut_in_the_request_samples_nothing(dialect: ProgramDialect, share: float) -> None:
    async def agent(base_url: str) -> float:
        body = json.dumps(BODIES[dialect.path]).encode()
        await cut(base_url, dialect, body[: int(share * len(body))], length=len(body))
        await Client(base_url).say([user("the end")])
        return 0.0

    engine = SpellingEngine([f"x{END}"])
    assert len((await play(agent, engine)).turns) == len(engine.asked) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_connection_that_is_cut_while_its_answer_is_sampled_leaves_nothing(
    dialect: ProgramDialect, stream: bool
) -> None:
    is_sampling, is_stopped = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        if len(engine.asked) == 1:
            is_sampling.set()
            try:
                await asyncio.sleep(600)
            finally:
                is_stopped.set()

    async def agent(base_url: str) -> float:
        body = json.dumps({**BODIES[dialect.path], "stream": stream}).encode()
        await cut(base_url, dialect, body, length=len(body), after=is_sampling)
        await is_stopped.wait()
        await Client(base_url).say([user("the end")])
        return 0.0

    engine = SpellingEngine(lambda context: f"x{END}", wait=wait)
    episode = await play(agent, engine)
    assert len(engine.asked) == 2
    assert [s.token_ids for s in episode.turns] == engine.answered
    assert (len(episode.branches), episode.metrics["requests"]) == (1, 1.0)


async def cut(
    base_url: str, dialect: ProgramDialect, body: bytes, *, length: int, after: asyncio.Event | None = None
) -> None:
    """Send the head and this much of a body, wait for the event, and leave."""
    url = httpx.URL(base_url + dialect.path)
    _, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(f"POST {url.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode() + body)
    await writer.drain()
    if after is not None:
        await after.wait()
    writer.close()
    await writer.wait_closed()
