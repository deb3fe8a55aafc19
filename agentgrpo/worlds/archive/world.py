"""One world: facts on founders, heads, makers and governors, the sources that state them, and the questions they
answer. Everything is a pure function of the names and the random generator."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from agentgrpo.core.types import Message, Passage, Task
from agentgrpo.worlds.almanac.world import draw_cast

UNKNOWN = "unknown"
IN_VDB = 0.7
"""Share of the stated settled facts that the vdb has; the web has all of them."""
CHANGED = 0.5
"""Share of the changing facts with an old value in the vdb, in the same wordings as a current one."""
LOST = 0.1
"""Share of the settled facts that no source states. Only questions on a single fact ask for them; the answer is
"unknown"."""

Told = Literal["settled", "changing", "page"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRelation:
    """One kind of fact. A query is the relation's name and the subject.

    told: settled = stated on the web, and mostly in the vdb; changing = stated in both, often with an old value in the
    vdb; page = stated only on a page to which a web passage links."""

    of: str
    is_: str
    told: Told


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveWords:
    """words.json: all words of the world except its names."""

    relations: Mapping[str, ArchiveRelation]
    facts: tuple[str, ...]
    """Wordings of a fact; a document has one of them."""
    questions: tuple[str, ...]
    noun: str
    page_text: str
    page_url: str
    chatter: tuple[str, ...]


@cache
def words() -> ArchiveWords:
    raw = json.loads((Path(__file__).parent / "words.json").read_text(encoding="utf-8"))
    return ArchiveWords(
        relations={
            name: ArchiveRelation(of=r["of"], is_=r["is"], told=r["told"]) for name, r in raw["relations"].items()
        },
        facts=tuple(raw["facts"]),
        questions=tuple(raw["questions"]),
        noun=raw["noun"],
        page_text=raw["page"]["text"],
        page_url=raw["page"]["url"],
        chatter=tuple(raw["chatter"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFact:
    """One fact. in_vdb, on_web: the value stated there, None = not stated."""

    relation: str
    subject: str
    value: str
    in_vdb: str | None
    on_web: str | None

    @property
    def rule(self) -> ArchiveRelation:
        return words().relations[self.relation]

    @property
    def query(self) -> str:
        return f"{self.relation} {self.subject}"

    @property
    def url(self) -> str:
        return words().page_url.format(subject=self.subject)

    @property
    def id(self) -> str:
        return f"{self.relation}-{self.subject.lower()}"

    @property
    def is_lost(self) -> bool:
        return self.on_web is None

    def tells(self, sentence: str) -> str | None:
        """The value that a sentence gives for this fact; None if the sentence is about something else."""
        for wording in words().facts:
            before, after = wording.format(noun=self.relation, subject=self.subject, value="\0").split("\0")
            if sentence.startswith(before) and sentence.endswith(after):
                return sentence[len(before) : len(sentence) - len(after)]
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveQuestion:
    """A question and the chains of facts that answer it: one, or two of the same relations."""

    kind: str
    text: str
    chains: tuple[tuple[ArchiveFact, ...], ...]

    @property
    def answer(self) -> str:
        lost = any(fact.is_lost for chain in self.chains for fact in chain)
        return UNKNOWN if lost else " and ".join(chain[-1].value for chain in self.chains)

    def task(self, prefix: str) -> Task:
        facts = [fact for chain in self.chains for fact in chain]
        return Task(
            id=f"{prefix}-{self.kind}-{'-'.join(chain[0].subject.lower() for chain in self.chains)}",
            messages=(Message(role="user", content=self.text),),
            references=(self.answer,),
            metadata={
                "kind": self.kind,
                "hops": len(facts),
                "supporting": tuple(fact.id for fact in facts if not fact.is_lost),
            },
            data_source="archive",
        )


def relations_of(kind: str) -> tuple[tuple[str, ...], int]:
    """ "maker+founder&" -> (("maker", "founder"), 2): the relations of a chain, first hop first; how many chains."""
    return tuple(kind.removesuffix("&").split("+")), 2 if kind.endswith("&") else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveWorld:
    facts: Mapping[str, Mapping[str, ArchiveFact]]
    """Facts by relation and subject."""
    corpora: Mapping[str, tuple[Passage, ...]]
    """vdb, web, and the pages that the web points to."""

    def questions(self, kind: str, rng: random.Random) -> list[ArchiveQuestion]:
        """Questions of one kind, one per subject (or pair of subjects), in random order."""
        relations, num_chains = relations_of(kind)
        chains = []
        for subject in self.facts[relations[0]]:
            chain = self._chain(relations, subject)
            if len(chain) * num_chains == 1 or not any(fact.is_lost for fact in chain):
                chains.append(chain)
        rng.shuffle(chains)
        groups = list(zip(*[iter(chains)] * num_chains, strict=False))
        return [ArchiveQuestion(kind=kind, text=_asked(relations, group, rng), chains=group) for group in groups]

    def _chain(self, relations: Sequence[str], subject: str) -> tuple[ArchiveFact, ...]:
        chain: list[ArchiveFact] = []
        for relation in relations:
            fact = self.facts[relation][subject]
            chain.append(fact)
            subject = fact.value
        return tuple(chain)


def _asked(relations: Sequence[str], chains: Sequence[Sequence[ArchiveFact]], rng: random.Random) -> str:
    noun = " and ".join(chain[0].subject for chain in chains)
    for relation in relations:
        noun = words().noun.format(noun=relation, subject=noun)
    return rng.choice(words().questions).format(noun=noun)


def draw_archive(names: Sequence[str], num_companies: int, rng: random.Random) -> ArchiveWorld:
    """Draw a world from `names`. Raises ConfigError if there are too few."""
    places = draw_cast(names, num_companies, rng)
    facts: dict[str, dict[str, ArchiveFact]] = {}
    vdb: list[Passage] = []
    web: list[Passage] = []
    pages: list[Passage] = []
    for name, rule in words().relations.items():
        facts[name] = {}
        for subject in places[rule.of]:
            fact = _drawn(name, subject, places[rule.is_], rng)
            facts[name][subject] = fact
            told = [
                rng.choice(words().facts).format(noun=name, subject=subject, value=value)
                for value in (fact.in_vdb, fact.on_web)
            ]
            if fact.in_vdb is not None:
                vdb.append(Passage(id=f"{fact.id}-vdb", text=told[0]))
            if fact.on_web is not None and rule.told == "page":
                web.append(Passage(id=fact.id, text=words().page_text.format(noun=name, subject=subject), url=fact.url))
                pages.append(Passage(id=fact.url, text=told[1], url=fact.url))
            elif fact.on_web is not None:
                web.append(Passage(id=fact.id, text=told[1]))
    chatter = [
        Passage(id=f"chatter-{name.lower()}", text=rng.choice(words().chatter).format(subject=name))
        for named in places.values()
        for name in named
    ]
    return ArchiveWorld(facts=facts, corpora={"vdb": (*vdb, *chatter), "web": (*web, *chatter), "pages": tuple(pages)})


def _drawn(relation: str, subject: str, values: Sequence[str], rng: random.Random) -> ArchiveFact:
    told = words().relations[relation].told
    value, other, u = rng.choice(values), rng.choice(values), rng.random()
    in_vdb: str | None = None
    if told == "settled" and LOST <= u < LOST + IN_VDB * (1 - LOST):
        in_vdb = value
    elif told == "changing":
        in_vdb = other if u < CHANGED else value
    is_lost = told == "settled" and u < LOST
    return ArchiveFact(
        relation=relation, subject=subject, value=value, in_vdb=in_vdb, on_web=None if is_lost else value
    )
