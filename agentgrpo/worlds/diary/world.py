"""The events of a diary: on its days facts appear, change and are retracted, among rumours and chatter.

A plain diary uses the words of the questions. A hard one paraphrases, spreads a fact over two sentences, changes and
retracts facts implicitly ("Velmor left Oslo and settled in Paris", "Velmor has no home now"), and has meetings that are
counted over all days. Both ask a memory to store clauses of the same form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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

# --- The people in the diaries: the almanac's names, sorted into three pools.


def people(pool: Pool, count: int, rng: Random) -> list[str]:
    """Draw `count` names of the pool with different first syllables, so that the first syllable determines the rest."""
    by_beginning = _by_beginning(pool)
    return [rng.choice(by_beginning[first]) for first in rng.sample(sorted(by_beginning), count)]


def most_people(pool: Pool) -> int:
    """Maximum `count` of `people`."""
    return len(_by_beginning(pool))


def beginning() -> str:
    """A regular expression for the first syllable of any name, with the space before it. It cuts a name into two
    tokens, each of which is as common in held-out names as in training names."""
    first, second = ("|".join(group) for group in almanac.syllables())
    return f" ?(?<![A-Za-z])(?:{first})(?=(?:{second})(?![a-z]))"


@cache
def _by_beginning(pool: Pool) -> dict[str, Sequence[str]]:
    firsts, seconds = almanac.syllables()
    allowed = frozenset(almanac.names(pool))
    made = {first: [first + second for second in seconds if first + second in allowed] for first in firsts}
    return {first: group for first, group in made.items() if group}


UNKNOWN = "unknown"
"""The answer about a fact that a diary never states, has retracted, or gives as a rumour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiaryRelation:
    """A relation of diary.json: "<somebody> <verb> <cue> <value>". No other relation has its verb or cue."""

    verb: str
    cue: str
    asked: str
    """where | what."""
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrasing:
    """Wordings of one relation: texts with {who}, {key}, {cue}, {value}, {before} and {asked} to be filled in."""

    fact: tuple[str, ...]
    change: tuple[str, ...]
    forget: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The wordings of a diary."""

    relations: Mapping[str, Phrasing]
    """Phrasings by verb."""
    meetings: tuple[str, ...] = ()
    """Texts with {who} and {whom}; () = no meetings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A day's statement on one subject, in one or two sentences; chatter has only a text."""

    text: str
    """The text without its last full stop."""
    kind: str
    """fact | change | forget | meeting | again (a repeated meeting) | rumour | chatter."""
    key: str = ""
    """The subject: "Velmor lives"."""
    value: str = ""
    """The statement on the subject: "in Paris"."""
    before: str = ""
    """The old value, for a change: "Oslo"."""

    @property
    def clause(self) -> str:
        """The statement in the words of an entry."""
        return f"{self.key} {self.value}" if self.key else self.text

    @property
    def is_meeting(self) -> bool:
        """Whether it is a meeting; a memory may hold several meetings with one key."""
        return self.kind in ("meeting", "again")

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The changes that it asks a memory to make: none or one."""
        match self.kind:
            case "fact":
                return (Fact(op="insert", key=self.key, text=self.clause),)
            case "meeting":
                return (Fact(op="add", key=self.key, text=self.clause),)
            case "change":
                return (Fact(op="update", key=self.key, text=f"{self.clause} before {self.before}"),)
            case "forget":
                return (Fact(op="delete", key=self.key, text=""),)
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Probabilities of the events of a diary."""

    events: tuple[float, ...] = (0.12, 0.5, 0.38)
    """Probabilities of 0, 1, 2, ... facts, changes and retractions on a day."""
    noise: tuple[float, ...] = (0.2, 0.5, 0.3)
    """Probabilities of 0, 1, 2, ... rumours and chatter on a day; a day without events has at least one."""
    change: float = 0.28
    forget: float = 0.14
    rumour: float = 0.4
    """Share of rumours in the noise; the rest is chatter."""
    meet: float = 0.3
    """Share of meetings in the events of a hard diary ..."""
    again: float = 0.25
    """... and share of repeated meetings among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diary:
    days: tuple[tuple[Sentence, ...], ...]
    questions: tuple[Question, ...]
    names: tuple[str, ...]
    """Names of the days, e.g. "Monday"."""
    source: str = "diary"

    @property
    def chunks(self) -> tuple[str, ...]:
        # a space follows the name of the day, so that a person's name has the same tokens everywhere
        return tuple(
            " ".join((f"{name}.", *(f"{s.text}." for s in day)))
            for name, day in zip(self.names, self.days, strict=True)
        )

    def task(self, task_id: str, kind: str) -> Task:
        return memory_task(
            task_id,
            chunks=self.chunks,
            questions=self.questions,
            data_source=self.source,
            facts=[[fact for sentence in day for fact in sentence.facts] for day in self.days],
            metadata={"kind": kind},
        )


def draw_diary(pool: Pool, num_days: int, *key: object, rates: Rates | None = None, hard: bool = False) -> Diary:
    """Draw a diary about people of `pool`, as a pure function of the arguments."""
    source = "diary_hard" if hard else "diary"
    rng = generator(source, *key)
    return _Draw(pool, num_days, rng, rates or Rates(), hard_wording() if hard else plain_wording()).diary(source)


@cache
def plain_wording() -> Wording:
    told = Phrasing(
        fact=("{key} {cue} {value}",),
        change=("After {before}, {key} {cue} {value}",),
        forget=("Please forget {asked} {key}",),
    )
    return Wording(relations={relation.verb: told for relation in relations()})


@cache
def hard_wording() -> Wording:
    raw = json.loads((Path(__file__).parent / "hard.json").read_text(encoding="utf-8"))
    told = {
        verb: Phrasing(**{kind: tuple(texts) for kind, texts in of.items()}) for verb, of in raw["relations"].items()
    }
    return Wording(relations=told, meetings=tuple(raw["meetings"]))


@cache
def relations() -> tuple[DiaryRelation, ...]:
    return tuple(DiaryRelation(**{**row, "values": tuple(row["values"])}) for row in _read()["relations"])


@cache
def _read() -> Any:
    return json.loads((Path(__file__).parent / "diary.json").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class _Topic:
    """A subject of sentences: one relation of one person."""

    person: str
    relation: DiaryRelation

    @property
    def key(self) -> str:
        return f"{self.person} {self.relation.verb}"

    def cloze(self) -> str:
        return f"{self.key} {self.relation.cue} ___"


class _Draw:
    """Draws a diary. It tracks the current and the previous value of each topic."""

    def __init__(self, pool: Pool, num_days: int, rng: Random, rates: Rates, wording: Wording) -> None:
        self.rng, self.rates, self.num_days, self.wording = rng, rates, num_days, wording
        # about two facts for each person, and one more person who is never mentioned
        count = min(max(3, round(0.7 * num_days)) + 1, most_people(pool))
        *self.people, self.stranger = people(pool, count, rng)
        self.fresh = [_Topic(person, relation) for person in self.people for relation in relations()]
        rng.shuffle(self.fresh)
        self.holds: dict[_Topic, str] = {}
        self.before: dict[_Topic, str] = {}
        self.forgotten: list[_Topic] = []
        self.rumoured: list[_Topic] = []
        self.met: dict[str, list[str]] = {}
        """Person -> people met, each once."""

    def diary(self, source: str) -> Diary:
        first = self.rng.randrange(7)
        days = tuple(self._day() for _ in range(self.num_days))
        names = _read()["days"]
        return Diary(
            days=days,
            names=tuple(names[(first + i) % 7] for i in range(self.num_days)),
            questions=tuple(self._questions()),
            source=source,
        )

    def _day(self) -> tuple[Sentence, ...]:
        said: set[object] = set()
        day = [self._event(said) for _ in range(_how_many(self.rates.events, self.rng))]
        noise = _how_many(self.rates.noise, self.rng)
        day += [self._noise(said) for _ in range(noise if day else max(1, noise))]
        self.rng.shuffle(day)
        return tuple(day)

    def _event(self, said: set[object]) -> Sentence:
        """Draw an event. `said`: topics mentioned on this day; each comes once a day."""
        if self.wording.meetings and self.rng.random() < self.rates.meet:
            return self._meeting(said)
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
        return self._sentence(topic, "fact", self._told(topic).fact)

    def _change(self, topic: _Topic) -> Sentence:
        self.before[topic] = self.holds[topic]
        self.holds[topic] = self._value(topic)
        return self._sentence(topic, "change", self._told(topic).change)

    def _forget(self, topic: _Topic) -> Sentence:
        del self.holds[topic]
        self.before.pop(topic, None)
        self.forgotten.append(topic)
        return Sentence(text=self._text(topic, self._told(topic).forget), kind="forget", key=topic.key)

    def _meeting(self, said: set[object]) -> Sentence:
        """Draw a meeting, often of a person who has met others already, so that there is something to count."""
        sociable = [who for who in self.met if who not in said]
        others = [who for who in self.people if who not in said]
        if not others:
            return self._chatter()
        who = self.rng.choice(sociable if sociable and self.rng.random() < 0.6 else others)
        said.add(who)
        met = self.met.setdefault(who, [])
        new = [other for other in self.people if other != who and other not in met]
        again = bool(met) and (not new or self.rng.random() < self.rates.again)
        whom = self.rng.choice(met if again else new)
        if not again:
            met.append(whom)
        text = self.rng.choice(self.wording.meetings).format(who=who, whom=whom)
        return Sentence(text=text, kind="again" if again else "meeting", key=f"{who} met", value=whom)

    def _noise(self, said: set[object]) -> Sentence:
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
        value = self._value(topic)
        text = self._text(topic, [text for text in self._told(topic).fact if "." not in text], value)
        clause = f"{topic.relation.cue} {value}"
        return Sentence(text=f"Perhaps {text}", kind="rumour", key=topic.key, value=clause)

    def _chatter(self) -> Sentence:
        text: str = self.rng.choice(_read()["chatter"])
        return Sentence(text=text.format(*self.rng.sample(self.people, text.count("{}"))), kind="chatter")

    def _value(self, topic: _Topic) -> str:
        """Draw a value other than the current one."""
        return self.rng.choice([v for v in topic.relation.values if v != self.holds.get(topic)])

    def _told(self, topic: _Topic) -> Phrasing:
        return self.wording.relations[topic.relation.verb]

    def _text(self, topic: _Topic, texts: Sequence[str], value: str = "") -> str:
        text = texts[0] if len(texts) == 1 else self.rng.choice(texts)
        relation, before = topic.relation, self.before.get(topic, "")
        return text.format(
            who=topic.person, key=topic.key, cue=relation.cue, value=value, before=before, asked=relation.asked
        )

    def _sentence(self, topic: _Topic, kind: str, texts: Sequence[str]) -> Sentence:
        value = self.holds[topic]
        return Sentence(
            text=self._text(topic, texts, value),
            kind=kind,
            key=topic.key,
            value=f"{topic.relation.cue} {value}",
            before=self.before.get(topic, "") if kind == "change" else "",
        )

    def _questions(self) -> list[Question]:
        asked = [_question("current", t.cloze(), v) for t, v in self.holds.items()]
        asked += [_question("history", f"{t.key} before ___", v) for t, v in self.before.items()]
        asked += [_question("forgotten", t.cloze(), UNKNOWN) for t in self.forgotten]
        asked += [_question("rumoured", t.cloze(), UNKNOWN) for t in self.rumoured[: max(1, self.num_days // 6)]]
        asked += [_question("count", f"{who} met how many ___", str(len(whom))) for who, whom in self.met.items()]
        if self.rng.random() < 0.5 or not asked:
            asked.append(_question("never", _Topic(self.stranger, self.rng.choice(relations())).cloze(), UNKNOWN))
        return asked


def _question(kind: str, text: str, answer: str) -> Question:
    return Question(text=text, answers=(answer,), kind=kind)


def _how_many(chances: tuple[float, ...], rng: Random) -> int:
    return rng.choices(range(len(chances)), chances)[0]
