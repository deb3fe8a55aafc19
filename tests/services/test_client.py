"""What every JSON endpoint shares. All ways in which a server can fail are tested in tests/retrieval/test_http.py."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError, EpisodeError, JudgeError, RetrieverError
from agentgrpo.services.client import JsonClient, host_of, shown
from agentgrpo.services.rate import RateLimiter, pause_s, retry_after_s
from agentgrpo.services.secret import Secret
from tests.retrieval.server import Server, hang, hang_up, response, say, say_raw

KEY = "sk-canary-0123456789"


class Told(RateLimiter):
    """Remembers how long it is to hold, and does not."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[float] = []

    def hold(self, seconds: float) -> None:
        self.held.append(seconds)


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


def test_retry_after_is_seconds_or_a_date_by_the_server_s_clock() -> None:
    noon, later = "Fri, 01 Mar 2030 12:00:00 GMT", "Fri, 01 Mar 2030 12:00:07 GMT"
    assert (retry_after_s("7"), retry_after_s(later, noon), retry_after_s(noon, noon)) == (7.0, 7.0, 0.0)
    assert retry_after_s("Friday, 01-Mar-30 12:00:07 GMT", noon) == 7.0
    for nonsense in (None, "", "soon", "-1", "1.5", "²", "Fri, 99 Mar 2030 12:00:07 GMT"):
        assert retry_after_s(nonsense, noon) is None
    assert [retry_after_s(noon, later), retry_after_s(later, None), retry_after_s(later, "soon")] == [None] * 3
    assert retry_after_s("Fri, 01 Mar 2030 12:00:07", noon) is None  # no time zone: nobody's clock
    assert pause_s("a", 0, backoff_s=1.0, retry_after=later, date=noon) == 7.0


# --- GET


async def test_get_adds_parameters_to_the_url_s_own() -> None:
    async with Server(say({"ok": 1})) as server:
        judge = client(f"{server.url}?token=a+b")
        assert await judge.get({"q": "what is\té & why?", "n": "3"}, same) == {"ok": 1}
        assert server.requests == [{"token": "a b", "q": "what is\té & why?", "n": "3"}]
        head = server.heads[0]
        assert head.startswith("get /retrieve?token=a")
        assert ["content-" in head, "cookie" in head, "accept: application/json\r\n" in head] == [False, False, True]


async def test_get_is_retried_and_fails_as_post_does() -> None:
    async with Server(say("", "503 Service Unavailable"), say({"ok": 1}), say("no", "404 Not Found")) as server:
        judge = client(server.url)
        assert await judge.get({"q": "x"}, same) == {"ok": 1}
        with pytest.raises(JudgeError, match=r"attempt 1: HTTP 404 b'no'") as e:
            await judge.get({"q": "x"}, same)
        assert e.value.kind == "http_4xx"
        assert judge.counts == {"requests": 3, "retries": 1, "http_500": 1, "http_4xx": 1}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:1/x?k=s3cr3t", "http://h:1/x"),
        ("http://me:s3/cr3t@h/x", "http://h/x"),
        ("http://me:s3#cr3t@h/x", "http://h/x"),
        ("http://me:s3//cr3t@h/x?k=s3cr3t", "http://h/x"),
        ("http://me:s3?cr3t@h/x", "http://***"),
        ("http://h/x?k=s3@cr3t", "http://***"),
        ("me:s3cr3t@h", "h"),
        ("nonsense", "nonsense"),
    ],
)
def test_no_spelling_of_a_url_shows_its_secret(url: str, expected: str) -> None:
    assert shown(url) == expected


async def test_a_key_in_the_query_or_in_the_body_is_sent_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = "k/ey&+%'\""
    monkeypatch.setenv("CANARY_KEY", key)
    caplog.set_level(logging.DEBUG)
    spellings = [key, "k/ey%26%2B%25%27%22", "k%2Fey%26%2B%25%27%22", "k/ey&+%'\\\""]
    async with Server(*(say({"ok": 1}) for _ in range(2)), *(say(f"? {s}", "401 No") for s in spellings)) as server:
        judge = client(server.url, secrets=[Secret("CANARY_KEY", parameter="api_key")])
        assert await judge.get({"q": "x"}, same) == await judge.post({"q": "x"}, same) == {"ok": 1}
        assert server.requests == [{"q": "x", "api_key": key}] * 2
        assert "authorization" not in server.heads[0] + server.heads[1]
        for _ in spellings:
            with pytest.raises(JudgeError, match=r"HTTP 401 b'\? \$CANARY_KEY'"):
                await judge.get({"q": "x"}, same)
        everything = f"{caplog.text} {judge.__dict__} {judge._secrets}"
        assert [spelling for spelling in spellings if spelling in everything] == []


# --- connections


async def test_kept_connections_are_used_again_and_end_with_close() -> None:
    async with Server(say({"ok": 1}), keep_alive=True) as server:
        judge = client(server.url, keep_alive_s=30.0)
        for _ in range(5):
            assert await judge.get({}, same) == {"ok": 1}
        assert (server.connections, server.live, judge.counts) == (1, 1, {"requests": 5})
        await judge.close()
        async with asyncio.timeout(60):
            await server.until(lambda: server.live == 0)
        assert await judge.post({}, same) == {"ok": 1}  # opens another
        assert server.connections == 2
        await judge.close()


async def test_many_at_once_share_few_pools_and_all_their_connections_are_used_again() -> None:
    """A pool takes time with the square of its requests."""
    many, shares = asyncio.Barrier(40), set[tuple[int, ...]]()

    async def when_all_are_there(request: Any, writer: asyncio.StreamWriter) -> None:
        await many.wait()
        shares.add(tuple(pool.live for pool in judge._connections.get()._pools))
        await say({"ok": 1})(request, writer)

    async with Server(when_all_are_there, keep_alive=True) as server:
        judge = client(server.url, keep_alive_s=30.0)
        for _ in range(2):
            assert await asyncio.gather(*(judge.get({}, same) for _ in range(40))) == [{"ok": 1}] * 40
        assert (server.connections, server.live, max(shares)) == (40, 40, (8, 8, 8, 8, 8))
        await judge.close()
        async with asyncio.timeout(60):
            await server.until(lambda: server.live == 0)


async def test_a_connection_that_idled_for_too_long_is_not_used_again() -> None:
    async with Server(say({"ok": 1}), keep_alive=True) as server:
        judge = client(server.url, keep_alive_s=0.05)
        for _ in range(3):
            await judge.get({}, same)
            await asyncio.sleep(0.1)
        assert (server.connections, judge.counts) == (3, {"requests": 3})
        await judge.close()


@pytest.mark.parametrize("ending", ["closed", "reset", "closed when it is used"])
async def test_a_connection_that_the_server_closed_while_it_idled_is_no_failure(ending: str) -> None:
    async def close_it(request: Any, writer: asyncio.StreamWriter) -> None:
        await say({"ok": 1})(request, writer)
        if ending == "reset":
            writer.transport.abort()
        elif ending == "closed":
            writer.close()

    async def no_word(request: Any, writer: asyncio.StreamWriter) -> None:
        writer.close()

    plan = [close_it, no_word, say({"ok": 2})] if ending == "closed when it is used" else [close_it, say({"ok": 2})]
    async with Server(*plan, keep_alive=True) as server:
        judge = client(server.url, keep_alive_s=30.0, retries=0)
        assert await judge.get({}, same) == {"ok": 1}
        await asyncio.sleep(0.05)
        assert await judge.get({}, same) == {"ok": 2}
        assert server.connections == 2
        assert judge.counts == {"requests": 2} | ({"stale": 1} if len(plan) == 3 else {})
        await judge.close()


async def test_a_server_that_hangs_up_on_a_new_connection_is_a_failure() -> None:
    async with Server(hang_up, keep_alive=False) as server:
        judge = client(server.url, keep_alive_s=30.0, retries=1)
        with pytest.raises(JudgeError) as e:
            await judge.get({}, same)
        assert (e.value.kind, judge.counts) == ("transport", {"requests": 2, "retries": 1, "transport": 2})
        await judge.close()


def test_kept_connections_end_with_their_loop() -> None:
    """Nobody closes the client; a socket left open would be a ResourceWarning, which is an error here."""
    judge: JsonClient | None = None

    async def once() -> int:
        nonlocal judge
        async with Server(say({"ok": 1}), keep_alive=True) as server:
            if judge is None:
                judge = client(server.url, keep_alive_s=30.0)
            judge.url = server.url
            await asyncio.gather(*(judge.get({}, same) for _ in range(3)))
            return server.live

    assert [asyncio.run(once()) for _ in range(3)] == [3, 3, 3]
    gc.collect()


async def test_no_cookie_of_one_call_reaches_the_next() -> None:
    async with Server(say({}, headers="Set-Cookie: episode=1; Path=/\r\n"), keep_alive=True) as server:
        judge = client(server.url, keep_alive_s=30.0)
        for _ in range(2):
            await judge.get({}, same)
        assert [head for head in server.heads if "episode" in head] == []
        await judge.close()


# --- 429


async def test_a_date_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    sleep = asyncio.sleep

    async def remember(seconds: float) -> None:
        waited.append(seconds)
        await sleep(0)

    headers = "Date: Fri, 01 Mar 2030 12:00:00 GMT\r\nRetry-After: Fri, 01 Mar 2030 12:00:03 GMT\r\n"
    busy = say("", "429 Too Many Requests", headers)
    async with Server(busy, busy, say({"ok": 1})) as server:
        monkeypatch.setattr(asyncio, "sleep", remember)
        rate = Told()
        judge = client(server.url, rate=rate, timeout_s=60.0)
        assert await judge.get({}, same) == {"ok": 1}
        assert (waited, rate.held) == ([3.0, 3.0], [3.0, 3.0])


async def test_the_rate_is_held_only_for_pauses_that_a_call_could_outlive(monkeypatch: pytest.MonkeyPatch) -> None:
    rate, sleep = Told(), asyncio.sleep
    plan = [say("", "429 Too Many Requests", f"Retry-After: {s}\r\n") for s in ("3600", "4")]
    async with Server(*plan, say({"ok": 1})) as server:
        monkeypatch.setattr(asyncio, "sleep", lambda seconds: sleep(0))
        judge = client(server.url, rate=rate, timeout_s=60.0, setting="completer.timeout_s")
        with pytest.raises(JudgeError, match="HTTP 429") as e:
            await judge.get({}, same)
        assert await judge.get({}, same) == {"ok": 1}
        assert rate.held == [0.0, 4.0]
        assert judge.counts == {"requests": 3, "refused": 2, "http_429": 1}
    assert str(e.value) == (
        f"{server.url}, attempt 1: HTTP 429 b''; it takes no more calls, and completer.timeout_s=60 has a call wait no "
        "longer: raise it"
    )


class Places:
    """A server with so many places: a call without one is refused, and so is each after the first `quota`."""

    def __init__(self, places: int, *, seconds: float = 0.02, refusal: Any, quota: float = math.inf) -> None:
        self.places, self.seconds, self.refusal, self.quota = places, seconds, refusal, quota
        self.taken = self.answered = self.most = 0

    async def __call__(self, request: Any, writer: asyncio.StreamWriter) -> None:
        if self.taken == self.places or self.answered >= self.quota:
            await self.refusal(request, writer)
            return
        self.taken += 1
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.taken -= 1
        self.answered += 1
        await say({"ok": 1})(request, writer)


REFUSALS = {
    "429": say("", "429 Too Many Requests"),
    "429 at once": say("", "429 Too Many Requests", "Retry-After: 0\r\n"),
    "503 with Retry-After": say("", "503 Service Unavailable", "Retry-After: 0\r\n"),
    "529": say("", "529 Overloaded", "Retry-After: 0\r\n"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("keep_alive_s", [0.0, 30.0])
async def test_a_server_with_few_places_answers_every_call(refusal: str, keep_alive_s: float) -> None:
    places = Places(2, refusal=REFUSALS[refusal])
    async with Server(places, keep_alive=keep_alive_s > 0) as server:
        judge = client(server.url, retries=0, timeout_s=60.0, keep_alive_s=keep_alive_s)
        replies = await asyncio.gather(*(judge.get({}, same) for _ in range(60)))
        assert replies == [{"ok": 1}] * 60
        assert judge.counts.keys() == {"requests", "refused"}
        assert judge.counts["requests"] == 60 + judge.counts["refused"]
        assert judge.counts["refused"] > 0
        await judge.close()


async def test_a_503_without_retry_after_is_a_failure() -> None:
    async with Server(say("", "503 Service Unavailable")) as server:
        judge = client(server.url, retries=1)
        with pytest.raises(JudgeError, match=r"attempt 2: HTTP 503 b''$"):
            await judge.get({}, same)
        assert judge.counts == {"requests": 2, "retries": 1, "http_500": 2}


async def test_calls_wait_no_longer_than_timeout_s_for_a_server_that_answers_nobody() -> None:
    """Those in the line too, which were never asked for."""
    places = Places(2, refusal=REFUSALS["429"], quota=3)
    async with Server(places) as server:
        judge = client(server.url, timeout_s=4.0, setting="retriever.timeout_s")
        async with asyncio.timeout(120):
            ends = await asyncio.gather(*(judge.get({}, same) for _ in range(40)), return_exceptions=True)
    failures = [end for end in ends if isinstance(end, JudgeError)]
    assert ends.count({"ok": 1}) == 40 - len(failures) == places.answered
    assert {e.kind for e in failures} <= {"http_429", "timeout"}
    assert sum("retriever.timeout_s=4 has a call wait no longer" in str(e) for e in failures) > 30


@pytest.mark.parametrize(
    ("url", "more"),
    [("localhost:8000/v1", "; put http:// before it, or https://"), ("ftp://box/v1", ""), ("http://", ""), ("", "")],
)
def test_what_is_no_address_says_what_is(url: str, more: str) -> None:
    with pytest.raises(ConfigError) as e:
        host_of(url)
    allowed = "allowed is an http or https URL such as http://localhost:8000/retrieve"
    assert str(e.value) == f"url={url!r}; {allowed}{more}"
