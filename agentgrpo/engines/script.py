"""`engine: scripted`: turns that a file or the data set's demonstrator says, to try everything else without a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from agentgrpo.engines.base import SeedKey
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.errors import ConfigError

ORACLE = "oracle"
Oracle = Callable[[str, str], str]
"""(task id, context as text) -> the ideal policy's next turn. Raises ConfigError for a task that the data set has
not."""


class Codec(Protocol):
    """What is needed of a Renderer."""

    def encode_action(self, text: str) -> tuple[int, ...]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


class Scripted(ScriptedEngine):
    """script: "oracle", or a file of lines {"task": ID, "turns": ["...", ...]}: what is said in an episode of that
    task, every time it is attempted."""

    def __init__(
        self,
        *,
        renderer: Codec,
        oracle: Oracle | None,
        context_limit: int,
        script: str = ORACLE,
        max_context: int | None = None,
    ) -> None:
        """Raises ConfigError for a file that cannot be read, and for a data set without a demonstrator."""
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
    """Raises ConfigError."""
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
                f'{path}, line {number}: {type(e).__name__}: {e}; a line is {{"task": ID, "turns": ["...", ...]}}'
            ) from e
        if task in found:
            raise ConfigError(f"{path}, line {number}: a second script for the task {task}; keep one of them")
        found[task] = tuple(turns)
    if not found:
        raise ConfigError(f'{path} holds no script; a line is {{"task": ID, "turns": ["...", ...]}}')
    return found
