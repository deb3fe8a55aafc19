"""Scripted writers for this world: the oracle, and the three that demonstrate for a warm start.

They read the chunk and the shown entries from the context, as a policy does, but they are given the kind of each
sentence (a fact, a rumour, ...)."""

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
    """Update the entry of a changed fact; else the new fact is inserted beside the old ..."""
    neglect: float = 0.15
    """... or the change is ignored."""
    history: float = 0.6
    """Keep the old value in a changed entry."""
    forget: float = 0.4
    """Delete an entry that is to be forgotten."""
    rumour: float = 0.6
    """Write a rumour down as a fact."""
    chatter: float = 0.55
    """Write chatter down."""
    skip: float = 0.8
    """Call skip if nothing is written."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value <= 1:
                raise ConfigError(f"habits.{field.name}={value}; a probability in [0, 1] is allowed")
        if self.update + self.neglect > 1:
            raise ConfigError(
                f"habits.update={self.update} and habits.neglect={self.neglect}; a change is updated or neglected, so "
                "their sum must be at most 1"
            )


def insert(text: str) -> ToolCall:
    return ToolCall(name="insert", arguments={"content": text})


def update(text: str) -> ToolCall:
    return ToolCall(name="update", arguments={"content": text})


def delete(key: str) -> ToolCall:
    return ToolCall(name="delete", arguments={"key": key})


SKIP = ToolCall(name="skip", arguments={})

Write = Callable[[Sentence, bool, Random], Sequence[ToolCall]]
"""(sentence, whether its entry is shown, random generator) -> the calls for the sentence."""


class Writer:
    """Makes the calls for one sentence after the other. Its choices are a function of `key` and the chunk: equal
    contexts get equal acts."""

    def __init__(self, diary: Diary, write: Write, *, skip: float = 1.0, in_order: bool = True, key: str = "") -> None:
        """in_order: calls are in the order of the sentences; otherwise they are shuffled."""
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
    """Whether an entry for the sentence is shown: for a meeting the same clause, otherwise any entry with its key."""
    if sentence.is_meeting:
        return sentence.clause in shown
    return bool(sentence.key) and f"{sentence.key} " in shown


def ideal(sentence: Sentence, _shown: bool, _rng: Random) -> Sequence[ToolCall]:
    """Make exactly the calls that the diary's facts ask for. For the oracle, every entry exists, shown or not."""
    return [insert(f.text) if f.op in ("insert", "add") else _change(f.op, f.key, f.text) for f in sentence.facts]


def copy(sentence: Sentence, _shown: bool, _rng: Random) -> Sequence[ToolCall]:
    """Insert every sentence except requests to forget."""
    return [] if sentence.kind == "forget" else [insert(_entry(sentence))]


def drill(sentence: Sentence, shown: bool, _rng: Random) -> Sequence[ToolCall]:
    """Make the calls that the diary's facts ask for, but update or delete only entries that are shown."""
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
    """Return a writer that keeps worthless sentences, omits important ones, and inserts where it should update."""

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
