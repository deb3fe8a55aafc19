"""The engine over an OpenAI-compatible endpoint, against a loopback stand-in."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import BudgetSpent, ConfigError, EngineError
from agentgrpo.core.types import FinishReason, Message
from agentgrpo.engines.base import Completion, SamplingParams, SeedKey
from agentgrpo.engines.remote.openai import OpenAIEngine
from agentgrpo.engines.remote.server import seed_of
from agentgrpo.renderers.chat import ChatRenderer
from agentgrpo.renderers.plain import PlainRenderer
from agentgrpo.renderers.speech import Speech
from agentgrpo.services.cassette import CassetteMiss
from tests.engines import tiny
from tests.engines.remote.openai_stand_in import OpenAIStandIn, Say
from tests.renderers import families
from tests.services.stand_ins import meter

KEY = SeedKey("eval/test", "t1", 0, 0)
SAMPLING = SamplingParams(max_tokens=30, stop_token_ids=(tiny.EOS,), stop=("</search>",))
SYSTEM = [Message(role="system", content="Be brief."), Message(role="user", content="Who?")]
PLAIN = PlainRenderer(tokenizer=tiny.tokenizer())


def engine(server: OpenAIStandIn, speech: Speech | None = None, **settings: Any) -> OpenAIEngine:
    given: dict[str, Any] = {
        "speech": speech or Speech(PLAIN, tiny.tokenizer()),
        "run_seed": 7,
        "context_limit": 200,
        "base_url": server.url,
        "model": "gpt-x",
        "mode": "completions",
        "api_key_env": None,
        "backoff_s": 0.0,
    }
    return OpenAIEngine(**{**given, **settings})


async def say(said: Any, sampling: SamplingParams = SAMPLING, **settings: Any) -> tuple[str, Completion]:
    """The turn as text, and the whole."""
    with OpenAIStandIn(lambda path, body: said) as server:
        found = engine(server, **settings)
        done = await found.generate(tiny.encode("ab"), sampling, KEY)
        await found.close()
        return PLAIN.decode(done.token_ids), done


async def test_a_context_goes_out_as_text_and_the_key_in_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "s3cret")
    with OpenAIStandIn(lambda path, body: "Castin") as server:
        found = engine(server, api_key_env="SOME_KEY", extra={"seed": None, "logit_bias": {"5": 1}})
        done = await found.generate(PLAIN.open(SYSTEM), SAMPLING, KEY)
        await found.close()
    [(path, headers, body)] = server.requests
    assert (path, headers["Authorization"]) == ("/v1/completions", "Bearer s3cret")
    assert body == {
        "model": "gpt-x",
        "prompt": "Be brief.\nWho?\n",
        "max_tokens": 30,
        "temperature": 1.0,
        "logit_bias": {"5": 1},
    }
    assert (done.logprobs, done.finish_reason) == ((0.0,) * 7, FinishReason.STOP)
    assert found.trainable is False


async def test_a_chat_goes_out_as_messages_and_a_call_comes_back_as_one() -> None:
    tokenizer, renderer = families.tokenizer("chatml"), families.renderer("chatml")
    assert isinstance(renderer, ChatRenderer)
    with OpenAIStandIn(lambda path, body: '<tool_call>\n{"name": "x", "arguments": {}}\n</tool_call>') as server:
        found = engine(server, Speech(renderer, tokenizer), mode="chat", context_limit=2000)
        sampling = SamplingParams(max_tokens=300, stop_token_ids=renderer.stop_token_ids)
        done = await found.generate(renderer.open(SYSTEM), sampling, KEY)
        await found.close()
    [(path, _, body)] = server.requests
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "gpt-x",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}],
        "max_tokens": 300,
        "temperature": 1.0,
        "seed": seed_of(7, KEY) % 2**31,
    }
    assert done.token_ids[-1] == renderer.stop_token_ids[0]
    assert [call.name for call in renderer.parse(done.token_ids).calls] == ["x"]


async def test_a_turn_ends_where_its_agent_wants_it() -> None:
    text, done = await say("<search>x</search> and so on")
    assert (text, done.finish_reason) == ("<search>x</search>", FinishReason.STOP)
    text, done = await say(("<search>x</search> and so", "length"))
    assert (text, done.finish_reason) == ("<search>x</search>", FinishReason.STOP)
    text, done = await say("by itself")
    assert (text, done.finish_reason) == ("by itself<|eos|>", FinishReason.STOP)
    text, done = await say(("cut sho", "length"))
    assert (text, done.finish_reason) == ("cut sho", FinishReason.LENGTH)
    text, done = await say("longer than asked", SamplingParams(max_tokens=4, stop_token_ids=(tiny.EOS,)))
    assert (text, done.finish_reason, len(done.logprobs)) == ("long", FinishReason.LENGTH, 4)


async def test_control_tokens_that_it_spells_are_text() -> None:
    text, done = await say("a<|eos|>b</search>")
    assert (text, tiny.EOS in done.token_ids, 258 in done.token_ids) == ("a<|eos|>b</search>", False, False)


async def test_what_it_took_is_counted_and_priced() -> None:
    with OpenAIStandIn(lambda path, body: "x") as server:
        found = engine(server, prompt_price=0.5, completion_price=2.0)
        for _ in range(3):
            await found.generate([1], SAMPLING, KEY)
        await found.close()
    assert found.counts == {
        "calls": 3.0,
        "prompt_tokens": 300.0,
        "completion_tokens": 60.0,
        "cost": pytest.approx(3 * (0.05 + 0.04)),
        "uncounted": 0.0,
    }
    with OpenAIStandIn(lambda path, body: "x", usage=False) as server:
        found = engine(server, prompt_price=0.5)
        await found.generate([1], SAMPLING, KEY)
        await found.close()
    assert (found.counts["calls"], found.counts["uncounted"], found.counts["cost"]) == (1.0, 1.0, 0.0)


async def test_turns_are_recorded_replayed_and_within_the_budget(tmp_path: Path) -> None:
    said = iter(f"turn {i}" for i in range(9))
    prices = {"prompt_price": 0.5, "completion_price": 2.0}
    keys = [KEY, KEY._replace(sample_index=1)]
    with OpenAIStandIn(lambda path, body: next(said)) as server:
        m = meter(tmp_path, "fill", prices={"policy": 0.01}, run={"money": 0.5})
        found = engine(server, meter=m, extra={"seed": None}, **prices)
        turns = [await found.generate([1], SAMPLING, key) for key in (*keys, KEY)]
        assert [PLAIN.decode(t.token_ids) for t in turns] == ["turn 0<|eos|>", "turn 1<|eos|>", "turn 0<|eos|>"]
        assert (found.counts["calls"], m.counts["replayed"], len(server.requests)) == (2, 1, 2)
        each = 0.01 + 0.05 + 0.04
        assert m._ledger.totals()["policy"].money == pytest.approx(2 * each)
        more = [found.generate([1], SAMPLING, KEY._replace(sample_index=i)) for i in range(2, 9)]
        refused = [e for e in await asyncio.gather(*more, return_exceptions=True) if isinstance(e, BudgetSpent)]
        assert (len(refused), "budget.per_run.money=0.5" in str(refused[0])) == (7 + 2 - len(server.requests), True)
        spent = m._ledger.totals()["policy"].money
        assert (spent, spent <= 0.5) == (pytest.approx(len(server.requests) * each), True)
        assert len(server.requests) >= 4
        await found.close()
        await m.close()
        asked = len(server.requests)
        strict = meter(tmp_path, "strict")
        offline = engine(server, meter=strict, extra={"seed": None}, **prices)
        again = [await offline.generate([1], SAMPLING, key) for key in keys]
        assert [t.token_ids for t in again] == [t.token_ids for t in turns[:2]]
        with pytest.raises(CassetteMiss):
            await offline.generate([2], SAMPLING, KEY)
        assert (len(server.requests), offline.counts["cost"], strict.in_use) == (asked, 0.0, True)
        await offline.close()
        await strict.close()


def refusing(times: int, status: int) -> Say:
    left = [times]

    def reply(path: str, body: dict[str, Any]) -> Any:
        left[0] -= 1
        return (status, {"error": "no"}) if left[0] >= 0 else "fine"

    return reply


async def test_what_passes_is_tried_again_and_what_does_not_is_typed() -> None:
    with OpenAIStandIn(refusing(2, 503)) as server:
        found = engine(server)
        assert PLAIN.decode((await found.generate([1], SAMPLING, KEY)).token_ids) == "fine<|eos|>"
        await found.close()
    for said, kind in (
        ((401, {}), "http_4xx"),
        ((200, {"choices": []}), "garbage"),
        ((200, {"choices": [{"text": 5}]}), "garbage"),
        ((200, ["x"]), "garbage"),
    ):
        with pytest.raises(EngineError) as caught:
            await say(said)
        assert caught.value.kind == kind


async def test_a_context_without_room_is_refused_before_anybody_is_asked() -> None:
    with OpenAIStandIn(lambda path, body: "x") as server:
        found = engine(server, max_context=3)
        with pytest.raises(EngineError, match="max_context is 3") as caught:
            await found.generate([1, 2, 3], SAMPLING, KEY)
        assert (caught.value.kind, server.requests) == ("context_overflow", [])
        with pytest.raises(EngineError, match="cannot score"):
            await found.score([1, 2])
        await found.close()


def test_settings_that_make_no_sense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    given: dict[str, Any] = {"speech": Speech(PLAIN, tiny.tokenizer()), "run_seed": 0, "context_limit": 9}
    for settings, says in (
        ({}, "OPENAI_API_KEY is not set"),
        ({"api_key_env": None, "base_url": "localhost"}, "http or https URL"),
        ({"api_key_env": None, "prompt_price": -1.0}, r"engine\.prompt_price=-1\.0"),
        ({"api_key_env": None, "requests_per_minute": 0}, "requests_per_minute=0"),
    ):
        with pytest.raises(ConfigError, match=says):
            OpenAIEngine(**{**given, **settings})
