"""One world: companies, products, people and cities, the facts that connect them, the documents that state the facts
and the questions they answer. Everything is a pure function of the names and the random generator."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Message, Passage, Task

MIN_CITIES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AlmanacRelation:
    """A kind of fact, with the wordings of its question, query and statement. `{subject}` and `{value}` are filled in.

    The query shares words with the statement. With `needs_rerank` other documents match the query better, and only a
    reranker with the thesaurus ranks the fact first. The last word before the value is unique to this relation. A fact
    with a `stale` wording is current on the web only; the vdb has an old value."""

    question: str
    query: str
    fact: str
    of: str
    is_: str
    stale: str = ""
    needs_rerank: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """relations.json: all words of the world except its names."""

    relations: Mapping[str, AlmanacRelation]
    two_hops: Mapping[str, str]
    amounts: tuple[str, ...]
    chatter: Mapping[str, Mapping[str, str]]
    chatter_per_name: int
    """Number of documents for the audience "everyone" that each name gets, on different topics; a company gets all
    documents for its audience."""
    idle_query: str
    """The query of an idle search."""


@cache
def texts() -> Texts:
    raw = json.loads((Path(__file__).parent / "relations.json").read_text(encoding="utf-8"))
    relations = {name: AlmanacRelation(is_=r.pop("is"), **r) for name, r in raw["relations"].items()}
    return Texts(
        relations=relations,
        two_hops=raw["two_hops"],
        amounts=tuple(raw["amounts"]),
        chatter=raw["chatter"],
        chatter_per_name=raw["chatter_per_name"],
        idle_query=raw["idle_query"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlmanacFact:
    relation: str
    subject: str
    value: str

    @property
    def rule(self) -> AlmanacRelation:
        return texts().relations[self.relation]

    @property
    def sentence(self) -> str:
        return self.rule.fact.format(subject=self.subject, value=self.value)

    @property
    def query(self) -> str:
        return self.rule.query.format(subject=self.subject)

    @property
    def passage_id(self) -> str:
        return f"{self.relation}-{self.subject.lower()}"

    @property
    def web_only(self) -> bool:
        return bool(self.rule.stale)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlmanacQuestion:
    """A question and the facts that answer it, in the order in which they can be found."""

    kind: str
    text: str
    hops: tuple[AlmanacFact, ...]

    @property
    def answer(self) -> str:
        return self.hops[-1].value

    def task(self, prefix: str) -> Task:
        return Task(
            id=f"{prefix}-{self.kind}-{self.hops[0].subject.lower()}",
            messages=(Message(role="user", content=self.text),),
            references=(self.answer,),
            metadata={
                "kind": self.kind,
                "hops": len(self.hops),
                "supporting": tuple(fact.passage_id for fact in self.hops),
                "needs_web": any(fact.web_only for fact in self.hops),
                "needs_rerank": any(fact.rule.needs_rerank for fact in self.hops),
            },
            data_source="almanac",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlmanacWorld:
    vdb: tuple[Passage, ...]
    """Settled facts, old values of changing facts, and chatter."""
    web: tuple[Passage, ...]
    """The current value of every fact, and the same chatter."""
    questions: Mapping[str, tuple[AlmanacQuestion, ...]]
    """Questions by kind, each in random order."""

    def round_robin(self) -> list[AlmanacQuestion]:
        """Return the questions of all kinds in turn: any prefix is balanced while no kind has run out."""
        longest = max(len(questions) for questions in self.questions.values())
        return [questions[i] for i in range(longest) for questions in self.questions.values() if i < len(questions)]


def num_names(num_companies: int) -> int:
    """Names that a world takes: per company one, one product and two people; half as many cities, at least
    MIN_CITIES."""
    return 4 * num_companies + max(MIN_CITIES, num_companies // 2)


def draw_cast(names: Sequence[str], num_companies: int, rng: random.Random) -> dict[str, list[str]]:
    """Draw names for each kind: company, product, person, city. It takes `num_names(num_companies)` of the names.
    Raises ConfigError if there are too few."""
    if num_companies < 1 or num_names(num_companies) > len(names):
        raise ConfigError(
            f"num_companies={num_companies} takes {num_names(num_companies)} names; there are {len(names)}, enough for "
            f"{max(0, (len(names) - MIN_CITIES) * 2 // 9)} companies. Choose fewer, but at least 1"
        )
    drawn = list(names)
    rng.shuffle(drawn)
    return {
        "company": drawn[:num_companies],
        "product": drawn[num_companies : 2 * num_companies],
        "person": drawn[2 * num_companies : 4 * num_companies],
        "city": drawn[4 * num_companies : num_names(num_companies)],
    }


def draw_world(names: Sequence[str], num_companies: int, rng: random.Random) -> AlmanacWorld:
    """Draw a world from `names`. Raises ConfigError if there are too few."""
    places = draw_cast(names, num_companies, rng)
    company, product, person = places["company"], places["product"], places["person"]
    places["amount"] = list(texts().amounts)
    # every person founded or heads exactly one company, and every company makes one product: no question is ambiguous
    fixed = {"founder": person[::2], "chief": person[1::2], "maker": company}
    facts: dict[str, list[AlmanacFact]] = {}
    vdb: list[Passage] = []
    web: list[Passage] = []
    for name, rule in texts().relations.items():
        subjects = places[rule.of]
        values = fixed[name] if name in fixed else [rng.choice(places[rule.is_]) for _ in subjects]
        facts[name] = [AlmanacFact(relation=name, subject=s, value=v) for s, v in zip(subjects, values, strict=True)]
        for fact in facts[name]:
            told = Passage(id=fact.passage_id, text=fact.sentence)
            web.append(told)
            vdb.append(_outdated(fact, places[rule.is_], rng) if fact.web_only else told)
    chatter = [_chatter("company", topic, name) for name in company for topic in texts().chatter["company"]]
    for name in (*company, *product, *person):
        topics = rng.sample(sorted(texts().chatter["everyone"]), texts().chatter_per_name)
        chatter += [_chatter("everyone", topic, name) for topic in topics]
    return AlmanacWorld(vdb=(*vdb, *chatter), web=(*web, *chatter), questions=_questions(facts, rng))


def _chatter(audience: str, topic: str, subject: str) -> Passage:
    return Passage(id=f"{topic}-{subject.lower()}", text=texts().chatter[audience][topic].format(subject=subject))


def _outdated(fact: AlmanacFact, values: Sequence[str], rng: random.Random) -> Passage:
    value = rng.choice([v for v in values if v != fact.value] or [fact.value])
    return Passage(id=f"{fact.passage_id}-years-ago", text=fact.rule.stale.format(subject=fact.subject, value=value))


def _questions(
    facts: Mapping[str, Sequence[AlmanacFact]], rng: random.Random
) -> dict[str, tuple[AlmanacQuestion, ...]]:
    questions: dict[str, list[AlmanacQuestion]] = {
        name: [
            AlmanacQuestion(kind=name, text=fact.rule.question.format(subject=fact.subject), hops=(fact,))
            for fact in facts[name]
        ]
        for name in facts
    }
    for kind, text in texts().two_hops.items():
        first, second = kind.split("+")
        following = {fact.subject: fact for fact in facts[second]}
        questions[kind] = [
            AlmanacQuestion(kind=kind, text=text.format(subject=fact.subject), hops=(fact, following[fact.value]))
            for fact in facts[first]
        ]
    for each in questions.values():
        rng.shuffle(each)
    return {kind: tuple(each) for kind, each in questions.items()}


# --- Names of the world's people, places and things: two syllables each ("Velmor"), sorted into three pools.
#
# A name's pool depends on its spelling alone, never on a world seed: whatever world a policy was trained in, it has
# never met a name of the test pool.

Pool = Literal["train", "dev", "test"]
SHARES: dict[Pool, float] = {"test": 0.20, "dev": 0.06, "train": 0.74}


def pool_of(name: str) -> Pool:
    u = int.from_bytes(blake2b(name.encode(), digest_size=8, person=b"almanac-name").digest(), "big") / (1 << 64)
    if u < SHARES["test"]:
        return "test"
    return "dev" if u < SHARES["test"] + SHARES["dev"] else "train"


@cache
def syllables() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The (first, second) syllables of names."""
    read = json.loads((Path(__file__).parent / "names.json").read_text(encoding="utf-8"))
    return tuple(read["first"]), tuple(read["second"])


@cache
def names(pool: Pool) -> tuple[str, ...]:
    """Every name of the pool, in alphabetical order."""
    firsts, seconds = syllables()
    return tuple(sorted(a + b for a in firsts for b in seconds if pool_of(a + b) == pool))


# --- The words a reranker should know for this world: query word -> words that documents use instead.


@cache
def thesaurus() -> Mapping[str, tuple[str, ...]]:
    raw = json.loads((Path(__file__).parent / "thesaurus.json").read_text(encoding="utf-8"))
    return {word: tuple(others) for word, others in raw.items()}
