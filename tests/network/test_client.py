"""What every JSON endpoint shares. All ways in which a server can fail are tested in tests/retrievers/test_http.py."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from agentgrpo.errors import ConfigError, EpisodeError, JudgeError, RetrieverError
from agentgrpo.network.client import JsonClient
from agentgrpo.network.pauses import pause_s
from agentgrpo.network.secret import Secret
from tests.retrievers.server import Server, hang, response, say, say_raw

KEY = "sk-canary-0123456789"


def client(url: str, **settings: Any) -> JsonClient:
    return JsonClient(**{"url": url, "error": JudgeError, "timeout_s": 5.0, "backoff_s": 0.01, **settings})


def same(reply: Any) -> Any:
    return reply


def test_pauses_double_repeat_and_retry_after_has_the_last_word() -> None:
    pauses = [pause_s("a", attempt, backoff_s=1.0) for attempt in range(4)]
    assert [2**attempt / 2 <= pause < 2**attempt for attempt, pause in enumerate(pauses)] == [True] * 4
    assert pauses == [pause_s("a", attempt, backoff_s=1.0) for attempt in range(4)]
    assert len({pause_s(f"{seed}", 0, backoff_s=1.0) for seed in range(20)}) == 20
    assert pause_s("a", 0, backoff_s=1.0, retry_after="7") == 7.0
    for nonsense in ("-1", "nan", "soon", "Fri, 31 Dec 1999 23:59:59 GMT", ""):
        assert pause_s("a", 0, backoff_s=1.0, retry_after=nonsense) == pauses[0]


async def test_jitter_is_a_function_of_the_caller_s_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    sleep = asyncio.sleep

    async def remember(seconds: float) -> None:
        waited.append(seconds)
        await sleep(0)

    async with Server(say("", "503 Service Unavailable")) as server:
        monkeypatch.setattr(asyncio, "sleep", remember)
        judge = client(server.url, retries=2)
        for seed in ("task-1", "task-2", "task-1"):
            with pytest.raises(JudgeError):
                await judge.post({}, same, seed=seed)
        assert waited[0:2] == waited[4:6] != waited[2:4]
        assert waited[0:2] == [pause_s(f"{server.url} task-1", i, backoff_s=0.01) for i in (0, 1)]


@pytest.mark.parametrize("error", [JudgeError, RetrieverError])
async def test_failures_are_raised_as_the_caller_s_own_error(error: type[EpisodeError]) -> None:
    async with Server(hang) as server:
        with pytest.raises(error) as e:
            await client(server.url, error=error, timeout_s=0.1).post({}, same)
        assert (type(e.value), e.value.kind) == (error, "timeout")


async def test_a_reader_s_verdict_on_the_reply_counts_as_a_failure() -> None:
    def refuse(reply: Any) -> None:
        raise JudgeError(f"no verdict in {reply}", kind="verdict")

    async with Server(say({"a": 1})) as server:
        judge = client(server.url)
        with pytest.raises(JudgeError, match=r"attempt 1: no verdict in \{'a': 1\}"):
            await judge.post({}, refuse)
        assert judge.counts == {"requests": 1, "verdict": 1}


# --- secrets


async def test_a_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("CANARY_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    quoting = say(f"incorrect key {KEY}", "401 Unauthorized")
    garbling = say("x" * 75 + KEY)
    broken = say_raw(response(b"", f"999999 {KEY}", "\0"))
    async with Server(say({"ok": 1}), quoting, garbling, broken) as server:
        judge = client(server.url, secrets=[Secret("CANARY_KEY"), Secret("CANARY_KEY", "X-Key", "")], retries=0)
        assert await judge.post({}, same) == {"ok": 1}
        assert f"authorization: bearer {KEY}\r\nx-key: {KEY}\r\n" in server.heads[0]
        messages = []
        for _ in range(3):
            with pytest.raises(JudgeError) as e:
                await judge.post({}, same)
            messages.append(str(e.value))
        assert "HTTP 401 b'incorrect key $CANARY_KEY'" in messages[0]
        everything = f"{messages} {caplog.text} {judge.__dict__} {judge._secrets}"
        assert KEY[:5] not in everything


async def test_a_password_in_a_url_is_sent_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with Server(say({"ok": 1}), say("no", "401 Unauthorized")) as server:
        judge = client(server.url.replace("//", "//me:p@ss@") + "?token=abc", retries=0)
        assert (judge.shown, await judge.post({}, same)) == (server.url, {"ok": 1})
        assert "authorization: basic bwu6cebzcw==\r\n" in server.heads[0].lower()
        with pytest.raises(JudgeError) as e:
            await judge.post({}, same)
    assert str(e.value) == f"{server.url}, attempt 1: HTTP 401 b'no'"
    for settings in ({"url": "http://me:p@ss@h/x?token=abc", "retries": -1}, {"url": "ftp://me:p@ss@h?token=abc"}):
        with pytest.raises(ConfigError, match=r"^(http://h/x: timeout_s=|url='ftp://h'; allowed is)") as refused:
            client(**settings)
        assert "abc" not in str(refused.value)
    assert caplog.messages == [str(e.value)]


async def test_a_key_that_changes_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_KEY", "old")
    async with Server(say({})) as server:
        judge = client(server.url, secrets=[Secret("CANARY_KEY", "X-Key", "")])
        await judge.post({}, same)
        monkeypatch.setenv("CANARY_KEY", "new")
        await judge.post({}, same)
        assert ["x-key: old" in server.heads[0], "x-key: new" in server.heads[1]] == [True, True]


@pytest.mark.parametrize("value, problem", [(None, "is not set"), ("", "is not set"), (f"{KEY}\n", "holds spaces")])
def test_a_key_that_cannot_be_sent_is_refused_by_name(
    value: str | None, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CANARY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("CANARY_KEY", value)
    with pytest.raises(ConfigError, match=f"the environment variable CANARY_KEY {problem}") as e:
        client("http://localhost:1", secrets=[Secret("CANARY_KEY")])
    assert KEY not in str(e.value)
