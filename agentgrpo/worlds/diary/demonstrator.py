"""Scripted writers for this world: the oracle, and the three that a warm start is made from.

They read the chunk and the shown entries from the context, as a policy does; what a sentence is (a fact, a rumour, ...)
they are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from random import Random

from agentgrpo.core.chance import generator
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import ParsedTurn
from agentgrpo.core.types import ToolCall
from agentgrpo.worlds.diary.world import Diary, Sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class DiaryHabits:
    """How wasteful and how careless demonstrations are: probabilities in [0, 1]."""

    fact: float = 0.85
    """Write a new fact down."""
    update: float = 0.45
    """Where a fact has changed, change its entry; else the new one is written beside the old ..."""
    neglect: float = 0.15
    """... or the change is let pass."""
    history: float = 0.6
    """Keep the old value in a changed entry."""
    forget: float = 0.4
    """Delete what is to be forgotten."""
    rumour: float = 0.6
    """Write a rumour down as a fact."""
    chatter: float = 0.55
    """Write chatter down."""
    skip: float = 0.8
    """Say so where nothing is written."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value <= 1:
                raise ConfigError(f"habits.{field.name}={value}; a probability in [0, 1] is allowed")
        if self.update + self.neglect > 1:
            raise ConfigError(
                f"habits.update={self.update} and habits.neglect={self.neglect}; of a change only one can happen, so "
                "their sum is at most 1"
            )


def insert(text: str) -> ToolCall:
    return ToolCall(name="insert", arguments={"content": text})


def update(text: str) -> ToolCall:
    return ToolCall(name="update", arguments={"content": text})


def delete(key: str) -> ToolCall:
    return ToolCall(name="delete", arguments={"key": key})


SKIP = ToolCall(name="skip", arguments={})

Write = Callable[[Sentence, bool, Random], Sequence[ToolCall]]
"""(sentence, whether its entry is shown, chance) -> what is called because of it."""


class Writer:
    """Calls for one sentence after the other. Its choices are a function of `key` and the chunk: the same context gets
    the same act."""

    def __init__(self, diary: Diary, write: Write, *, skip: float = 1.0, in_order: bool = True, key: str = "") -> None:
        """in_order: of the sentences; else in any order."""
        self.diary, self.write, self.skip, self.in_order, self.key = diary, write, skip, in_order, key

    def act(self, context: str) -> ParsedTurn:
        chunks = self.diary.chunks
        # one chunk may be the beginning of another
        chunk = max((i for i, text in enumerate(chunks) if text in context), key=lambda i: len(chunks[i]))
        shown = context[: context.rindex(chunks[chunk])]
        rng = generator("diary writer", self.key, chunk)
        calls = [
            call
            for sentence in self.diary.days[chunk]
            for call in self.write(sentence, _is_shown(sentence, shown), rng)
        ]
        if not self.in_order:
            rng.shuffle(calls)
        if not calls and rng.random() < self.skip:
            calls = [SKIP]
        return ParsedTurn(calls=tuple(calls))


def _is_shown(sentence: Sentence, shown: str) -> bool:
    """Of a meeting the entry itself, else any of the key."""
    if sentence.is_meeting:
        return sentence.clause in shown
    return bool(sentence.key) and f"{sentence.key} " in shown


def ideal(sentence: Sentence, _shown: bool, _rng: Random) -> Sequence[ToolCall]:
    """What the diary asks of a memory, and nothing else. For the oracle: all it wants is there, shown or not."""
    return [insert(f.text) if f.op in ("insert", "add") else _change(f.op, f.key, f.text) for f in sentence.facts]


def copy(sentence: Sentence, _shown: bool, _rng: Random) -> Sequence[ToolCall]:
    """Every sentence is an entry."""
    return [] if sentence.kind == "forget" else [insert(_entry(sentence))]


def drill(sentence: Sentence, shown: bool, _rng: Random) -> Sequence[ToolCall]:
    """What the diary asks of a memory, by what is shown of it: no update or delete of what is not."""
    match sentence.kind:
        case "fact":
            return [insert(sentence.clause)]
        case "change":
            return [update(_entry(sentence)) if shown else insert(_entry(sentence))]
        case "meeting" | "again":
            return [] if shown else [insert(sentence.clause)]
        case "forget":
            return [delete(sentence.key)] if shown else []
    return []


def careless(habits: DiaryHabits) -> Write:
    """Keeps what is not worth it, leaves out what is, and writes beside what it should change."""

    def write(sentence: Sentence, shown: bool, rng: Random) -> Sequence[ToolCall]:
        chance = rng.random()
        match sentence.kind:
            case "fact" | "rumour" | "chatter":
                return [insert(sentence.clause)] if chance < getattr(habits, sentence.kind) else []
            case "meeting" | "again":
                return [insert(sentence.clause)] if chance < habits.fact else []
            case "forget":
                return [delete(sentence.key)] if shown and chance < habits.forget else []
        kept = _entry(sentence) if rng.random() < habits.history else sentence.clause
        if chance < habits.neglect:
            return []
        return [update(kept) if shown and chance < habits.neglect + habits.update else insert(sentence.clause)]

    return write


def _entry(sentence: Sentence) -> str:
    return f"{sentence.clause} before {sentence.before}" if sentence.before else sentence.clause


def _change(op: str, key: str, text: str) -> ToolCall:
    return update(text) if op == "update" else delete(key)
