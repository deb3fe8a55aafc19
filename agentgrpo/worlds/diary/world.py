"""What happens in a diary: days on which facts come up, change and are taken back, among rumours and chatter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from agentgrpo.core.chance import generator
from agentgrpo.core.types import Task
from agentgrpo.tasks.dialogue import Fact, Question, memory_task
from agentgrpo.worlds.almanac import world as almanac
from agentgrpo.worlds.almanac.world import Pool

# --- Who is written about: the almanac's people, sorted into three pools by their names.


def people(pool: Pool, count: int, rng: Random) -> list[str]:
    """Names of the pool, no two of which begin with the same syllable: who has read one knows how it goes on."""
    by_beginning = _by_beginning(pool)
    return [rng.choice(by_beginning[first]) for first in rng.sample(sorted(by_beginning), count)]


def most_people(pool: Pool) -> int:
    """How many `people` can give."""
    return len(_by_beginning(pool))


def beginning() -> str:
    """A regular expression of the first syllable of any name, with the space before it. Cut there, a name is two
    tokens, each of which is as common in held-out names as in those of training."""
    first, second = ("|".join(group) for group in almanac.syllables())
    return f" ?(?<![A-Za-z])(?:{first})(?=(?:{second})(?![a-z]))"


@cache
def _by_beginning(pool: Pool) -> dict[str, Sequence[str]]:
    firsts, seconds = almanac.syllables()
    allowed = frozenset(almanac.names(pool))
    made = {first: [first + second for second in seconds if first + second in allowed] for first in firsts}
    return {first: group for first, group in made.items() if group}


UNKNOWN = "unknown"
"""The answer to what a diary does not say, says no longer, or calls a rumour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiaryRelation:
    """One of diary.json: "<somebody> <verb> <cue> <value>". Verbs and cues are its own."""

    verb: str
    cue: str
    asked: str
    """where | what."""
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One sentence of a day; of chatter the text alone."""

    text: str
    """Without its full stop."""
    kind: str
    """fact | change | forget | rumour | chatter."""
    key: str = ""
    """What it is about: "Velmor lives"."""
    value: str = ""
    """What is said of that: "in Paris"."""
    before: str = ""
    """What held until then, of a change: "Oslo"."""

    @property
    def clause(self) -> str:
        """What it says in the words of an entry."""
        return f"{self.key} {self.value}" if self.key else self.text

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What it asks of a memory: nothing, or one thing."""
        match self.kind:
            case "fact":
                return (Fact(op="insert", key=self.key, text=self.clause),)
            case "change":
                return (Fact(op="update", key=self.key, text=f"{self.clause} before {self.before}"),)
            case "forget":
                return (Fact(op="delete", key=self.key, text=""),)
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How often what happens, of what can happen."""

    events: tuple[float, ...] = (0.12, 0.5, 0.38)
    """A day has 0, 1 or 2 facts, changes and retractions ..."""
    noise: tuple[float, ...] = (0.2, 0.5, 0.3)
    """... and as many rumours and remarks; one at least where it has nothing else."""
    change: float = 0.28
    forget: float = 0.14
    rumour: float = 0.4
    """The others are chatter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diary:
    days: tuple[tuple[Sentence, ...], ...]
    questions: tuple[Question, ...]
    names: tuple[str, ...]
    """Of the days: "Monday"."""

    @property
    def chunks(self) -> tuple[str, ...]:
        # the name of the day has a space follow it, so that a name is the same tokens wherever it stands
        return tuple(
            " ".join((f"{name}.", *(f"{s.text}." for s in day)))
            for name, day in zip(self.names, self.days, strict=True)
        )

    def task(self, task_id: str, kind: str) -> Task:
        return memory_task(
            task_id,
            chunks=self.chunks,
            questions=self.questions,
            data_source="diary",
            facts=[[fact for sentence in day for fact in sentence.facts] for day in self.days],
            metadata={"kind": kind},
        )


def draw_diary(pool: Pool, num_days: int, *key: object, rates: Rates | None = None) -> Diary:
    """A function of its arguments alone, about people of `pool`."""
    return _Draw(pool, num_days, generator("diary", *key), rates or Rates()).diary()


@cache
def relations() -> tuple[DiaryRelation, ...]:
    return tuple(DiaryRelation(**{**row, "values": tuple(row["values"])}) for row in _read()["relations"])


@cache
def _read() -> Any:
    return json.loads((Path(__file__).parent / "diary.json").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class _Topic:
    """What a sentence can be about: one relation of one person."""

    person: str
    relation: DiaryRelation

    @property
    def key(self) -> str:
        return f"{self.person} {self.relation.verb}"

    def cloze(self) -> str:
        return f"{self.key} {self.relation.cue} ___"


class _Draw:
    """A diary in the making: what holds at the end of each day, and what held before."""

    def __init__(self, pool: Pool, num_days: int, rng: Random, rates: Rates) -> None:
        self.rng, self.rates, self.num_days = rng, rates, num_days
        # about two facts for each person; one more, of whom nothing is ever said
        count = min(max(3, round(0.7 * num_days)) + 1, most_people(pool))
        *self.people, self.stranger = people(pool, count, rng)
        self.fresh = [_Topic(person, relation) for person in self.people for relation in relations()]
        rng.shuffle(self.fresh)
        self.holds: dict[_Topic, str] = {}
        self.before: dict[_Topic, str] = {}
        self.forgotten: list[_Topic] = []
        self.rumoured: list[_Topic] = []

    def diary(self) -> Diary:
        first = self.rng.randrange(7)
        days = tuple(self._day() for _ in range(self.num_days))
        names = _read()["days"]
        return Diary(
            days=days,
            names=tuple(names[(first + i) % 7] for i in range(self.num_days)),
            questions=tuple(self._questions()),
        )

    def _day(self) -> tuple[Sentence, ...]:
        said: set[_Topic] = set()
        day = [self._event(said) for _ in range(_how_many(self.rates.events, self.rng))]
        noise = _how_many(self.rates.noise, self.rng)
        day += [self._noise(said) for _ in range(noise if day else max(1, noise))]
        self.rng.shuffle(day)
        return tuple(day)

    def _event(self, said: set[_Topic]) -> Sentence:
        """`said`: what the day has spoken of; it does so once."""
        chance, rates = self.rng.random(), self.rates
        standing = [topic for topic in self.holds if topic not in said]
        if standing and chance < rates.change + rates.forget:
            topic = self.rng.choice(standing)
            said.add(topic)
            return self._change(topic) if chance < rates.change else self._forget(topic)
        new = [topic for topic in self.fresh if topic not in said]
        if not new:
            return self._chatter()
        topic = new[0]
        self.fresh.remove(topic)
        said.add(topic)
        self.holds[topic] = self._value(topic)
        return self._sentence(topic, "fact", "{key} {cue} {value}")

    def _change(self, topic: _Topic) -> Sentence:
        self.before[topic] = self.holds[topic]
        self.holds[topic] = self._value(topic)
        return self._sentence(topic, "change", "After {before}, {key} {cue} {value}")

    def _forget(self, topic: _Topic) -> Sentence:
        del self.holds[topic]
        self.before.pop(topic, None)
        self.forgotten.append(topic)
        return Sentence(text=f"Please forget {topic.relation.asked} {topic.key}", kind="forget", key=topic.key)

    def _noise(self, said: set[_Topic]) -> Sentence:
        if self.rng.random() >= self.rates.rumour:
            return self._chatter()
        standing = [topic for topic in self.holds if topic not in said]
        unsaid = [topic for topic in self.fresh if topic not in said]
        among = standing if standing and self.rng.random() < 0.5 else unsaid or standing
        if not among:
            return self._chatter()
        topic = self.rng.choice(among)
        said.add(topic)
        if topic not in self.holds:
            self.fresh.remove(topic)  # it stays a rumour
            self.rumoured.append(topic)
        value = f"{topic.relation.cue} {self._value(topic)}"
        return Sentence(text=f"Perhaps {topic.key} {value}", kind="rumour", key=topic.key, value=value)

    def _chatter(self) -> Sentence:
        text: str = self.rng.choice(_read()["chatter"])
        return Sentence(text=text.format(*self.rng.sample(self.people, text.count("{}"))), kind="chatter")

    def _value(self, topic: _Topic) -> str:
        """Another one than holds."""
        return self.rng.choice([v for v in topic.relation.values if v != self.holds.get(topic)])

    def _sentence(self, topic: _Topic, kind: str, text: str) -> Sentence:
        relation, value, before = topic.relation, self.holds[topic], self.before.get(topic, "")
        return Sentence(
            text=text.format(key=topic.key, cue=relation.cue, value=value, before=before),
            kind=kind,
            key=topic.key,
            value=f"{relation.cue} {value}",
            before=before if kind == "change" else "",
        )

    def _questions(self) -> list[Question]:
        asked = [_question("current", t.cloze(), v) for t, v in self.holds.items()]
        asked += [_question("history", f"{t.key} before ___", v) for t, v in self.before.items()]
        asked += [_question("forgotten", t.cloze(), UNKNOWN) for t in self.forgotten]
        asked += [_question("rumoured", t.cloze(), UNKNOWN) for t in self.rumoured[: max(1, self.num_days // 6)]]
        if self.rng.random() < 0.5 or not asked:
            asked.append(_question("never", _Topic(self.stranger, self.rng.choice(relations())).cloze(), UNKNOWN))
        return asked


def _question(kind: str, text: str, answer: str) -> Question:
    return Question(text=text, answers=(answer,), kind=kind)


def _how_many(chances: tuple[float, ...], rng: Random) -> int:
    return rng.choices(range(len(chances)), chances)[0]
