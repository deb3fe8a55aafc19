"""Programs played against a scripted policy, over HTTP; an engine that spells its turns letter by letter, so that text
which is tokenised again gives other tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from agentgrpo.core.types import Episode, FinishReason
from agentgrpo.engines.base import Completion, SamplingParams, SeedKey
from agentgrpo.environments.program.dialects import CHAT, MESSAGES
from agentgrpo.environments.program.environment import ProgramEnvironments
from agentgrpo.environments.program.exchange import ProgramDialect
from agentgrpo.renderers.base import ToolRenderer
from agentgrpo.rollout.loop import PolicyRunner
from tests import builders
from tests.renderers import families

RENDERER = families.renderer("chatml")
END = "<|im_end|>"
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
ADDS = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>' + END


def spelled(text: str) -> tuple[int, ...]:
    """A token for each letter, and one for each control token."""
    ids: list[int] = []
    controls = families.controls("chatml")
    while text:
        control = next((c for c in controls if text.startswith(c)), None)
        ids += [controls[control]] if control else RENDERER.encode_action(text[0])
        text = text[len(control or text[0]) :]
    return tuple(ids)


@dataclass
class SpellingEngine:
    """says(context text): the next turn's text, or a script of them in order of asking."""

    says: Sequence[str] | Callable[[str], str]
    max_context: int = 4096
    trainable: bool = True
    asked: list[tuple[tuple[int, ...], SamplingParams, SeedKey]] = field(default_factory=list)
    answered: list[tuple[int, ...]] = field(default_factory=list)
    stopped: list[SeedKey] = field(default_factory=list)
    wait: Callable[[], Any] | None = None
    """Awaited before each answer."""

    async def generate(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Completion:
        self.asked.append((tuple(token_ids), sampling, key))
        turn = len(self.asked) - 1
        text = self.says(RENDERER.decode(token_ids)) if callable(self.says) else self.says[turn]
        try:
            await (self.wait() if self.wait else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.stopped.append(key)
            raise
        ids = spelled(text)
        cut = len(ids) > sampling.max_tokens
        ids = ids[: sampling.max_tokens]
        self.answered.append(ids)
        logprobs = tuple(-i / 8 for i in range(len(ids)))
        reason = FinishReason.LENGTH if cut else FinishReason.STOP
        return Completion(token_ids=ids, logprobs=logprobs, finish_reason=reason, policy_version=3)

    def release(self, key: SeedKey) -> None: ...

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        raise NotImplementedError

    async def load_weights(self, policy_version: int) -> None:
        raise NotImplementedError

    async def close(self) -> None: ...


def environments(
    program: Callable[..., Any] | str, *, renderer: ToolRenderer = RENDERER, **options: Any
) -> ProgramEnvironments:
    given = {"command": program} if isinstance(program, str) else {"function": program}
    return ProgramEnvironments(renderer=renderer, **given, **{"reward_range": (-10.0, 10.0), **options})  # type: ignore[arg-type]


async def play(
    program: Callable[..., Any] | str | ProgramEnvironments,
    engine: SpellingEngine,
    *,
    sampling: SamplingParams | None = None,
    sample_index: int = 2,
    metadata: Mapping[str, Any] | None = None,
    **options: Any,
) -> Episode:
    made = program if isinstance(program, ProgramEnvironments) else environments(program, **options)
    runner = PolicyRunner(environment=made, engine=engine, renderer=made.renderer)
    return await runner.run(
        builders.task("1+2?", "3", id="t0", **(metadata or {})),
        sample_index=sample_index,
        stream="train/3",
        sampling=sampling or SamplingParams(max_tokens=200),
    )


class Client:
    """What an agent does with a base URL."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    async def post(self, body: object, *, path: str = "/chat/completions") -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with httpx.AsyncClient(timeout=60, trust_env=False, verify=False) as client:
            return await client.post(self.base_url + path, content=content)

    async def refused(self, body: object, dialect: ProgramDialect = CHAT) -> Mapping[str, Any]:
        """The error of a request that must not be answered, in its dialect's shape."""
        return error_in(await self.post(body, path=dialect.path), dialect)

    async def say(self, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """The assistant's message."""
        answer = await self.post({"model": "any", "messages": messages, **more})
        assert answer.status_code == 200, answer.text
        message: dict[str, Any] = answer.json()["choices"][0]["message"]
        return message


def error_in(answer: httpx.Response, dialect: ProgramDialect) -> Mapping[str, Any]:
    """The error in the shape that the dialect's own clients read."""
    assert answer.status_code >= 400, answer.text
    document = answer.json()
    error: Mapping[str, Any] = document["error"]
    if dialect is MESSAGES:
        assert (set(document), document["type"], set(error)) == ({"type", "error"}, "error", {"type", "message"})
    else:
        assert (set(document), set(error)) == ({"error"}, {"message", "type", "param", "code"})
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def result(message: Mapping[str, Any], text: str, call: int = 0) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": message["tool_calls"][call]["id"], "content": text}
