from __future__ import annotations

import pytest

from agentgrpo.core.errors import EngineError
from agentgrpo.core.types import FinishReason
from agentgrpo.engines.base import Completion, SamplingParams, SeedKey
from agentgrpo.engines.scripted import ScriptedEngine

KEY = SeedKey("eval/test", "t0", 1, 0)


def scripted(script, max_context=64) -> ScriptedEngine:
    return ScriptedEngine(
        encode=lambda text: [ord(c) for c in text],
        decode=lambda ids: "".join(map(chr, ids)),
        script=script,
        max_context=max_context,
    )


async def say(text: str, *, context: str = "ab", max_context: int = 64, **sampling) -> tuple[str, FinishReason]:
    engine = scripted(lambda key, seen: text, max_context)
    completion = await engine.generate([ord(c) for c in context], SamplingParams(**sampling), KEY)
    return "".join(map(chr, completion.token_ids)), completion.finish_reason


async def test_a_turn_is_what_the_script_says_of_key_and_context():
    engine = scripted(lambda key, seen: f"{key.turn}:{seen}!")
    await engine.load_weights(4)
    assert await engine.generate([ord("x"), ord("y")], SamplingParams(), KEY) == Completion(
        token_ids=tuple(map(ord, "0:xy!")),
        logprobs=(0.0,) * 5,
        finish_reason=FinishReason.STOP,
        policy_version=4,
    )
    engine.release(KEY)
    assert await engine.score([1, 2, 3]) == [0.0, 0.0]
    await engine.close()


async def test_stops_and_limits_are_those_of_a_policy():
    assert await say("abcdef", stop=("cd",)) == ("abcd", FinishReason.STOP)
    assert await say("abcdef", stop_token_ids=(ord("b"),)) == ("ab", FinishReason.STOP)
    assert await say("abcdef", max_tokens=3) == ("abc", FinishReason.LENGTH)
    assert await say("abcdef", max_tokens=6) == ("abcdef", FinishReason.STOP)
    assert await say("abcdef", max_context=6) == ("abcd", FinishReason.LENGTH)
    assert await say("abcdef", max_tokens=4, stop=("d",)) == ("abcd", FinishReason.STOP)


async def test_failures_are_engine_errors():
    with pytest.raises(EngineError, match="context of 4 tokens") as failure:
        await say("a", context="abcd", max_context=4)
    assert failure.value.kind == "context_overflow"
    with pytest.raises(EngineError, match="script: KeyError"):
        await scripted(lambda key, seen: {}[seen]).generate([1], SamplingParams(), KEY)
