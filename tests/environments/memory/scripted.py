"""Scripted parts for tests of the memory agent: a reader and a judge that do as they are told, and one episode of given
turns."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from agentgrpo.core.types import Episode, Passage, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.memory.base import Change, ChunkGrade
from agentgrpo.environments.memory.environment import MemoryEnvironments
from agentgrpo.environments.memory.schema import SCHEMAS
from agentgrpo.environments.memory.store import Memory
from agentgrpo.renderers.base import ToolRenderer
from agentgrpo.renderers.tags import TagsRenderer
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.tasks.dialogue import Question, memory_task
from tests.environments.scripted import ScriptedEngine, tokenizer
from tests.runners import memory_runner

EOS = "<|im_end|>"
QUESTIONS = (Question(text="Velmor lives in ___", answers=("Roka",)), Question(text="Who?", answers=("Dorsin", "D.")))
CHUNKS = ("Velmor lives in Castin.", "Velmor now lives in Roka.", "The weather is nice.")
TASK = memory_task("t7", chunks=CHUNKS, questions=QUESTIONS, data_source="test")
ONE = memory_task("t8", chunks=CHUNKS[:1], questions=QUESTIONS, data_source="test")
EPISODE = ("train/3", "t7", 2)


@dataclass
class ScriptedReader:
    """Answers with the number of documents, or does what `instead` does."""

    instead: Any = None
    asked: list[tuple[tuple[Question, ...], tuple[Passage, ...]]] = field(default_factory=list)
    closed: int = 0
    identity: str = "scripted"

    async def answer(self, questions: Sequence[Question], documents: Sequence[Passage]) -> list[str]:
        self.asked.append((tuple(questions), tuple(documents)))
        await asyncio.sleep(0)
        if self.instead is not None:
            return await self.instead()  # type: ignore[no-any-return]
        return [f"{len(documents)} entries" if documents else ""] * len(questions)

    def counts(self) -> dict[str, float]:
        return {"calls": float(len(self.asked))}

    async def close(self) -> None:
        self.closed += 1


@dataclass
class ScriptedValidity:
    """A verdict for each chunk, by its number; or what `instead` does with that."""

    verdicts: Mapping[int, ChunkGrade] = field(default_factory=dict)
    instead: Any = None
    judged: list[tuple[str, int, tuple[Change, ...]]] = field(default_factory=list)
    closed: int = 0

    async def judge(self, task: Task, chunk: int, changes: Sequence[Change]) -> ChunkGrade:
        self.judged.append((task.id, chunk, tuple(changes)))
        await asyncio.sleep(0)
        if self.instead is not None:
            return await self.instead(chunk)  # type: ignore[no-any-return]
        own = sum(change.chunk == chunk for change in changes)
        return self.verdicts.get(chunk, ChunkGrade(verdicts=(None,) * own))

    async def close(self) -> None:
        self.closed += 1


def tags(schema: str = "keyed") -> TagsRenderer:
    return TagsRenderer(tokenizer=tokenizer(), tools=SCHEMAS[schema].specs)


def insert(text: str) -> str:
    return f"<insert> {text}</insert>"


def update(text: str) -> str:
    return f"<update> {text}</update>"


def delete(key: str) -> str:
    return f"<delete> {key}</delete>"


SKIP = "<skip>"


def make(engine: Any, **options: Any) -> PolicyRunner:
    """A policy with a memory of one kind of entry, which tells no instructions."""
    defaults: dict[str, Any] = {
        "renderer": options.get("renderer") or tags(options.get("schema", "keyed")),
        "reader": ScriptedReader(),
        "validity": ScriptedValidity(),
        "schema": "keyed",
        "instructions": None,
        "min_context_left": 1,
    }
    return memory_runner(engine=engine, **defaults | options)


def made_of(runner: PolicyRunner) -> MemoryEnvironments:
    assert isinstance(runner.environment, MemoryEnvironments)
    return runner.environment


def token_ids_of(runner: PolicyRunner, memory: Memory, chunk: str) -> tuple[tuple[int, ...], bool]:
    """Of the prompt of a chunk, as the loop opens a context with it; and whether the chunk was cut."""
    environment = made_of(runner)
    messages, was_cut = environment.opening(memory, chunk, max_context=runner.engine.max_context)
    tools = environment.known_schema.specs
    return tuple(cast(ToolRenderer, runner.renderer).open_with_tools(messages, tools)), was_cut


@dataclass
class Played:
    """An episode and the parts it was played with."""

    episode: Episode
    engine: ScriptedEngine
    reader: ScriptedReader
    validity: ScriptedValidity

    @property
    def metrics(self) -> dict[str, float]:
        """Those that are not 0."""
        return {name: value for name, value in self.episode.metrics.items() if value}

    @property
    def texts(self) -> list[str]:
        """Of the entries at the end."""
        return [document.text for document in self.reader.asked[0][1]]


async def play(
    *script: str,
    task: Task | None = None,
    renderer: ToolRenderer | None = None,
    max_engine_context: int = 10_000,
    max_tokens: int = 1_000,
    **options: Any,
) -> Played:
    """One episode of exactly these turns, a chunk each: by default of the first chunks of CHUNKS."""
    if task is None:
        task = memory_task("t7", chunks=CHUNKS[: len(script)], questions=QUESTIONS, data_source="test")
    engine = ScriptedEngine(script, max_context=max_engine_context)
    parts = {"reader": ScriptedReader(), "validity": ScriptedValidity()} | options
    agent = make(engine, **parts | ({} if renderer is None else {"renderer": renderer}))
    episode = await agent.run(task, sample_index=2, stream="train/3", sampling=SamplingParams(max_tokens=max_tokens))
    assert len(engine.keys) == len(script), f"{len(engine.keys)} of {len(script)} scripted turns were sampled"
    return Played(episode, engine, parts["reader"], parts["validity"])
