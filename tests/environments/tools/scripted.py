"""Scripted parts for tests of the tool agent: tools that do as their arguments say, and one episode of given turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentgrpo.core.errors import ToolError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.types import Episode, Message, Outcome, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.tools.base import Tool, ToolResult, Workspace
from agentgrpo.tools.workspace import Workspaces
from tests.environments.scripted import ScriptedEngine, tokenizer
from tests.runners import tool_runner

EOS = "<|im_end|>"
STOP = "\nObservation:"


def spec(name: str, **properties: str) -> ToolSpec:
    """A tool whose arguments are all needed, of these JSON types."""
    return ToolSpec(
        name=name,
        description=f"The tool {name}.",
        parameters={
            "type": "object",
            "properties": {key: {"type": kind} for key, kind in properties.items()},
            "required": list(properties),
            "additionalProperties": False,
        },
    )


@dataclass
class Adder:
    """add: the sum of a and b."""

    spec: ToolSpec = field(default_factory=lambda: spec("add", a="integer", b="integer"))
    calls: list[tuple[Mapping[str, Any], str]] = field(default_factory=list)
    closed: int = 0

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        self.calls.append((arguments, workspace.seed))
        await asyncio.sleep(0)
        return ToolResult.ok(str(arguments["a"] + arguments["b"]))

    async def close(self) -> None:
        self.closed += 1


@dataclass
class Saying:
    """say: whatever `answer` makes of the text that it is given."""

    answer: Callable[[str, Workspace], Any]
    name: str = "say"
    exclusive: bool = False

    def __post_init__(self) -> None:
        self.spec = spec(self.name, text="string")

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        result = self.answer(arguments["text"], workspace)
        return await result if asyncio.iscoroutine(result) else result  # type: ignore[no-any-return]

    async def close(self) -> None: ...


def echo(text: str, workspace: Workspace) -> ToolResult:
    return ToolResult.ok(text)


def fail(text: str, workspace: Workspace) -> ToolResult:
    return ToolResult.failed(text)


def call(name: str, arguments: str) -> str:
    """One call as the policy writes it, without its stop."""
    return f"Action: {name}\nAction Input: {arguments}"


def add(a: int, b: int) -> str:
    return call("add", f'{{"a": {a}, "b": {b}}}') + STOP


def say(text: str) -> str:
    return call("say", f'{{"text": "{text}"}}') + STOP


def answer(text: str) -> str:
    return f"Final Answer: {text}{EOS}"


@dataclass
class Played:
    """An episode and the parts it was played with."""

    episode: Episode
    engine: ScriptedEngine
    adder: Adder

    @property
    def told(self) -> list[str]:
        """Texts of everything observed after the opening."""
        return [s.text for s in self.episode.branches[0].segments if s.role == "tool"]

    @property
    def outcomes(self) -> list[tuple[str, Outcome, int]]:
        return [(r.name, r.outcome, r.turn) for r in self.episode.tool_records]


QUESTION = "What is 2 + 3?"
TASK = Task(id="t7", messages=(Message(role="user", content=QUESTION),), references=("5",), data_source="test")


async def play(
    *script: str,
    tmp_path: Path,
    tools: Sequence[Tool] = (),
    task: Task = TASK,
    max_engine_context: int = 10_000,
    max_tokens: int = 1_000,
    **options: Any,
) -> Played:
    """One episode of exactly these turns, with the tool add and `tools`."""
    engine, adder = ScriptedEngine(script, max_context=max_engine_context), Adder()
    agent = tool_runner(
        engine=engine,
        renderer=ReactRenderer(tokenizer=tokenizer()),
        tools={tool.spec.name: tool for tool in (adder, *tools)},
        workspaces=Workspaces(tmp_path),
        **options,
    )
    episode = await agent.run(task, sample_index=2, stream="train/3", sampling=SamplingParams(max_tokens=max_tokens))
    assert len(engine.keys) == len(script), f"{len(engine.keys)} of {len(script)} scripted turns were sampled"
    return Played(episode, engine, adder)


class Broken(ToolError):
    """Told apart from every other failure."""
