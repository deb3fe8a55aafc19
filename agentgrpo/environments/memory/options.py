"""The settings of the memory environment: its parts, and every limit and switch with its default."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from agentgrpo.core.errors import ConfigError, did_you_mean
from agentgrpo.core.types import Message, Piece, Task
from agentgrpo.environments.conversation import counted
from agentgrpo.environments.factory import EnvironmentDefaults
from agentgrpo.environments.memory import prompt
from agentgrpo.environments.memory.base import EntryJudge, MemoryEntry, Reader
from agentgrpo.environments.memory.prompt import instructions_for
from agentgrpo.environments.memory.schema import SCHEMAS, Schema
from agentgrpo.environments.memory.store import Memory
from agentgrpo.renderers.base import ToolRenderer
from agentgrpo.tasks.dialogue import chunks_of, questions_of

_AT_LEAST = {"shown_entries": 0, "max_calls": 1, "max_context": 2, "min_context_left": 1, "core_tokens": 1}
_PART = 2**20
_SHOWN_BY = ("newest", "matching")


def schema_of(name: str) -> Schema:
    """The schema that environment.schema names. Raises ConfigError for an unknown one."""
    if name not in SCHEMAS:
        raise ConfigError(
            f"environment.schema '{name}': {', '.join(SCHEMAS)} are allowed.{did_you_mean(name, SCHEMAS)}"
        )
    return SCHEMAS[name]


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryOptions(EnvironmentDefaults):
    """Raises ConfigError for values out of range and for an unknown schema."""

    renderer: ToolRenderer
    reader: Reader
    validity: EntryJudge
    describe_tools: bool = True
    """False: the policy has learned the schema from demonstrations."""

    schema: str = "three_part"
    instructions: str | None = "auto"
    """A system message; auto = the schema's own, unless the policy has learned them; null = none."""
    shown_entries: int = 20
    """Maximum entries of each kind that the policy sees."""
    shown_by: str = "newest"
    """newest, or matching: the entries that share most words with the chunk."""
    max_calls: int = 16
    """Maximum calls for one chunk; further calls are refused."""
    max_context: int | None = 4096
    """Maximum tokens of a chunk's context; null = the engine's limit."""
    min_context_left: int = 100
    """Tokens left for a turn. To keep them free, entries are left out, oldest first, and then the end of the chunk."""
    core_tokens: int = 512
    """Maximum tokens of the core paragraph, if the schema has one."""

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"environment.{name} {value}: {least} or more is allowed; raise it")
        if self.shown_by not in _SHOWN_BY:
            near = did_you_mean(self.shown_by, _SHOWN_BY)
            raise ConfigError(f"environment.shown_by '{self.shown_by}': {', '.join(_SHOWN_BY)} are allowed.{near}")
        _ = self.known_schema  # an unknown schema fails at construction

    def rehearse(self, task: Task, *, max_context: int) -> None:
        """See environments.factory.EnvironmentFactory. Raises DataError for a task without chunks or questions."""
        questions_of(task)
        chunk, room = chunks_of(task)[0], self._room(max_context)
        if (taken := self._taken((), chunk, room)) > room:
            raise ConfigError(
                f"task {task.id}: the prompt of its first chunk takes {taken} tokens, tools included; "
                f"{self._limits(max_context)} Raise it (no model holds more than its own positions), lower the second, "
                "or cut the data into smaller chunks"
            )

    def new_memory(self) -> Memory:
        return Memory(self.known_schema, self.count_tokens, core_tokens=self.core_tokens)

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a text as in the prompt, after a space; chunks, entries and the core are all counted so.
        Texts of millions of characters are counted in parts: tokenized at once they would take gigabytes."""
        after = f" {text}"
        parts = (after[i : i + _PART] for i in range(0, len(after), _PART))
        return sum(len(self.renderer.observe((Piece(part, trusted=False),))) for part in parts)

    def opening(self, memory: Memory, chunk: str, *, max_context: int) -> tuple[tuple[Message, ...], bool]:
        """Return the prompt of one chunk, and whether the chunk was cut. If it leaves no room for a turn, entries are
        left out, oldest first and the core last of all, and then the end of the chunk. Raises ConfigError if the
        instructions alone take too much."""
        entries = prompt.shown(
            memory.entries, chunk, count=self.shown_entries, matching=self.shown_by == "matching"
        ) + ([] if memory.core is None else [memory.core])
        room = self._room(max_context)

        def fits(shown: Sequence[MemoryEntry], text: str) -> bool:
            return self._taken(shown, text, room) <= room

        if fits(entries, chunk):
            return self._messages(entries, chunk), False
        out = bisect_left(range(len(entries)), True, key=lambda n: fits(entries[n:], chunk))
        if fits(entries[out:], chunk):
            return self._messages(entries[out:], chunk), False
        kept = bisect_left(range(len(chunk)), True, key=lambda n: not fits((), chunk[:n])) - 1
        if kept < 0:
            raise ConfigError(
                f"the prompt without memory and chunk takes too much; {self._limits(max_context)} Raise the first"
            )
        return self._messages((), chunk[:kept]), True

    @cached_property
    def shared_opening(self) -> int:
        """Number of tokens with which all prompts open: instructions, tools and the template around them."""
        plain = self._rendered((), "")
        other = self._rendered((MemoryEntry(id="1", kind=next(iter(self.known_schema.kinds)), text="1", chunk=0),), "")
        return next((i for i, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b), len(plain))

    def _taken(self, entries: Sequence[MemoryEntry], chunk: str, most: int) -> int:
        return counted(lambda: len(self._rendered(entries, chunk)), size=len(chunk), most=most, renderer=self.renderer)

    def _room(self, max_context: int) -> int:
        """Maximum tokens of a prompt that leaves room for a turn."""
        return min(max_context, self.max_context or max_context) - self.min_context_left

    def _limits(self, max_context: int) -> str:
        return (
            f"environment.max_context={self.max_context} (the engine holds {max_context}) less "
            f"environment.min_context_left={self.min_context_left} for a turn leaves {self._room(max_context)}."
        )

    @property
    def known_schema(self) -> Schema:
        return schema_of(self.schema)

    @cached_property
    def _instructions(self) -> str | None:
        if self.instructions != "auto":
            return self.instructions
        return instructions_for(self.known_schema) if self.describe_tools else None

    def _messages(self, entries: Sequence[MemoryEntry], chunk: str) -> tuple[Message, ...]:
        return prompt.messages(self.known_schema, self._instructions, entries, chunk)

    def _rendered(self, entries: Sequence[MemoryEntry], chunk: str) -> tuple[int, ...]:
        return self.renderer.open_with_tools(self._messages(entries, chunk), self.known_schema.specs)
