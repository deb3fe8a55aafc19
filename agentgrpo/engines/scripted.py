"""An engine that follows a script: a shipped fake behind the Engine interface, for tests and demonstrations."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from agentgrpo.core.errors import ConfigError, EngineError, boundary, line_of
from agentgrpo.core.types import FinishReason
from agentgrpo.engines.base import Completion, SamplingParams, SeedKey
from agentgrpo.engines.remote.text import end_of, room_for


class ScriptedEngine:
    """script(key, context text) returns a turn's text, or an awaitable of it. Log-probs are 0.0, because the script is
    certain of its text. Not trainable, because no policy sampled these tokens."""

    trainable = False

    def __init__(
        self,
        *,
        encode: Callable[[str], Sequence[int]],
        decode: Callable[[Sequence[int]], str],
        script: Callable[[SeedKey, str], str | Awaitable[str]],
        max_context: int = 4096,
    ) -> None:
        self.max_context = max_context
        self.policy_version = 0
        self._encode, self._decode, self._script = encode, decode, script

    async def generate(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Completion:
        """Return the script's text up to the token that completes a stop string or is a stop token; the end of the text
        counts as a stop too. Truncated at max_tokens and max_context (LENGTH), like a policy's text."""
        room = room_for(token_ids, sampling, self.max_context)
        await asyncio.sleep(0)
        with boundary(EngineError, "script"):
            said = self._script(key, self._decode(token_ids))
            tokens = tuple(self._encode(await said if inspect.isawaitable(said) else said))
            tokens = tokens[: end_of(tokens, sampling, self._decode)]
        return Completion(
            token_ids=tokens[:room],
            logprobs=(0.0,) * len(tokens[:room]),
            finish_reason=FinishReason.LENGTH if len(tokens) > room else FinishReason.STOP,
            policy_version=self.policy_version,
        )

    def release(self, key: SeedKey) -> None:
        """Nothing is stored."""

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        return [0.0] * (len(token_ids) - 1)

    async def load_weights(self, policy_version: int) -> None:
        self.policy_version = policy_version

    async def close(self) -> None:
        """Nothing is open."""


# --- `engine: scripted`: turns from a file or from the data set's demonstrator, to try everything else without a model.

ORACLE = "oracle"
Oracle = Callable[[str, str], str]
"""(task id, context as text) -> the ideal policy's next turn. Raises ConfigError for a task that is not in the data
set."""


class Codec(Protocol):
    """The part of Renderer that is used here."""

    def encode_action(self, text: str) -> tuple[int, ...]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


class Scripted(ScriptedEngine):
    """script: "oracle", or a file of lines {"task": ID, "turns": ["...", ...]}: the turns of an episode of that task,
    the same for every attempt."""

    def __init__(
        self,
        *,
        renderer: Codec,
        oracle: Oracle | None,
        context_limit: int,
        script: str = ORACLE,
        max_context: int | None = None,
    ) -> None:
        """Raises ConfigError for an unreadable file, and for a data set without a demonstrator."""
        if script == ORACLE and oracle is None:
            raise ConfigError(
                "engine.script=oracle, and this task set demonstrates nothing; give a file of lines "
                '{"task": ID, "turns": ["...", ...]}: engine.script=FILE'
            )
        turns = _read(Path(script).expanduser()) if script != ORACLE else {}

        def say(key: SeedKey, context: str) -> str:
            if script == ORACLE and oracle is not None:
                return oracle(key.task_id, context)
            return _turn(turns, key, script)

        super().__init__(
            encode=renderer.encode_action,
            decode=renderer.decode,
            script=say,
            max_context=context_limit if max_context is None else max_context,
        )


def _turn(turns: Mapping[str, Sequence[str]], key: SeedKey, script: str) -> str:
    said = turns.get(key.task_id)
    if said is None:
        raise ConfigError(
            f"engine.script={script} has no line for the task {key.task_id}; add one, or evaluate fewer tasks: "
            "run.eval.tasks=N"
        )
    if key.turn >= len(said):
        raise ConfigError(
            f"engine.script={script} has {len(said)} turns for the task {key.task_id}, and its episode goes on; add a "
            "turn that ends it"
        )
    return said[key.turn]


def _read(path: Path) -> dict[str, tuple[str, ...]]:
    """Read a script file. Raises ConfigError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"engine.script={path} cannot be read: {e}; give a file of JSON lines, or oracle") from e
    found: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            task, turns = row["task"], row["turns"]
            if not (isinstance(task, str) and isinstance(turns, list) and all(isinstance(t, str) for t in turns)):
                raise TypeError("task must be a text and turns a list of texts")
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise ConfigError(
                f'{path}, line {number}: {line_of(e)}; a line is {{"task": ID, "turns": ["...", ...]}}'
            ) from e
        if task in found:
            raise ConfigError(f"{path}, line {number}: a second script for the task {task}; keep one of them")
        found[task] = tuple(turns)
    if not found:
        raise ConfigError(f'{path} holds no script; a line is {{"task": ID, "turns": ["...", ...]}}')
    return found
