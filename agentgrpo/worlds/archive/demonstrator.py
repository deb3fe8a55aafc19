"""Scripted policies for this world: the oracle, a rule that never reconsiders a result, and a demonstrator that shows
only part of the task, but always correctly.

They read the context as a policy does: they parse past searches and results from its text."""

from __future__ import annotations

import re
from collections.abc import Collection

from agentgrpo.core.chance import uniform
from agentgrpo.worlds.archive.world import UNKNOWN, ArchiveFact, ArchiveQuestion

_SEARCH = re.compile(r'<search(?:es)? retriever="(web|vdb)">(.*?)</search(?:es)?>', re.DOTALL)
_SHOWN = re.compile(r"^\[R\d+Q\d+D\d+\] (.*?)(?: URL: (\S+))?$", re.MULTILINE)


class ArchiveReading:
    """The contents of a context: (source, query) of the searches made, and the sentences shown."""

    def __init__(self, context: str) -> None:
        self.turns = _SEARCH.findall(context)
        self.asked = {(source, query.strip()) for source, body in self.turns for query in body.strip().split("\n")}
        self.sentences = [text for text, _ in _SHOWN.findall(context)]
        self.urls = {url for _, url in _SHOWN.findall(context) if url}

    def values(self, fact: ArchiveFact) -> list[str]:
        """The values that the shown sentences give for a fact, in order."""
        return [value for sentence in self.sentences if (value := fact.tells(sentence)) is not None]


def search(source: str, *queries: str) -> str:
    if len(queries) == 1:
        return f'<search retriever="{source}"> {queries[0]}</search>'
    lines = "".join(f"\n {query}" for query in queries)
    return f'<searches retriever="{source}">{lines}\n</searches>'


def answer(*values: str) -> str:
    return f"<answer> {' and '.join(values)}</answer>"


def plan(question: ArchiveQuestion) -> str:
    """Return the plan that opens a turn, with every fact as a subquestion."""
    lines = "".join(f"\n {fact.relation}" for hop in zip(*question.chains, strict=True) for fact in hop)
    return f"<subquestions>{lines}\n</subquestions>"


class ArchiveOracle:
    """Makes the fewest and cheapest searches that a policy can know to be needed: the vdb first for settled facts, the
    web for the others and for facts that the vdb lacks; both chains in one turn; a plan if several facts are needed."""

    def __init__(self, question: ArchiveQuestion) -> None:
        self.question = question

    def act(self, context: str) -> str:
        reading = ArchiveReading(context)
        first = plan(self.question) if not reading.turns and self.needs_plan else ""
        for facts in zip(*self.question.chains, strict=True):
            acts = [act for fact in facts if (act := self.act_for(fact, reading)) is not None]
            if any(act[0] == "give up" for act in acts):
                return answer(UNKNOWN)
            if acts:
                source = acts[0][0]
                same = [what for kind, what in acts if kind == source]
                return f"<fetch> {same[0]}</fetch>" if source == "fetch" else first + search(source, *same)
        return answer(*(chain[-1].value for chain in self.question.chains))

    @property
    def needs_plan(self) -> bool:
        return sum(map(len, self.question.chains)) > 1

    def act_for(self, fact: ArchiveFact, reading: ArchiveReading) -> tuple[str, str] | None:
        """(source or "fetch" or "give up", query or URL); None if the fact is known."""
        if self.is_known(fact, reading):
            return None
        if fact.rule.told == "page" and fact.url in reading.urls:
            return "fetch", fact.url
        for source in self.sources(fact):
            if (source, fact.query) not in reading.asked:
                return source, fact.query
        return "give up", ""

    def is_known(self, fact: ArchiveFact, reading: ArchiveReading) -> bool:
        return fact.value in reading.values(fact)

    def sources(self, fact: ArchiveFact) -> tuple[str, ...]:
        """The sources to search, in order."""
        return ("vdb", "web") if fact.rule.told == "settled" else ("web",)


class HastyRule:
    """A rule that knows every wording and never reconsiders a result: it searches the vdb hop after hop, takes the
    first sentence that answers, and answers "unknown" if it finds none."""

    def __init__(self, question: ArchiveQuestion) -> None:
        self.question = question

    def act(self, context: str) -> str:
        reading, found = ArchiveReading(context), []
        for chain in self.question.chains:
            subject = chain[0].subject
            for fact in chain:
                here = ArchiveFact(relation=fact.relation, subject=subject, value="", in_vdb=None, on_web=None)
                if ("vdb", here.query) not in reading.asked:
                    return search("vdb", here.query)
                values = reading.values(here)
                if not values:
                    return answer(UNKNOWN)
                subject = values[0]
            found.append(subject)
        return answer(*found)


class PartialDemonstrator(ArchiveOracle):
    """Gives correct but incomplete demonstrations. It searches a source drawn at random; only for the relations of
    `retries` can it search the wrong source first, or meet a fact that no source states. It plans a chain of two with
    probability `plans`, and always plans longer chains and chains with a relation of `retries`."""

    def __init__(
        self, question: ArchiveQuestion, *, key: str, web: float, plans: float, retries: Collection[str]
    ) -> None:
        super().__init__(question)
        self.key, self.web, self.plans, self.retries = key, web, plans, retries

    @property
    def needs_plan(self) -> bool:
        chain = self.question.chains[0]
        if len(chain) > 2 or (len(chain) > 1 and any(fact.relation in self.retries for fact in chain)):
            return True
        return len(chain) > 1 and uniform("archive", self.key, "plan") < self.plans

    def sources(self, fact: ArchiveFact) -> tuple[str, ...]:
        if fact.rule.told == "page":
            return ("web",)
        told = {"vdb": fact.in_vdb, "web": fact.on_web}
        right = [source for source, value in told.items() if value == fact.value]
        drawn = "web" if uniform("archive", self.key, fact.id) < self.web else "vdb"
        order = (drawn, "web" if drawn == "vdb" else "vdb")
        # a changed fact is never searched where its value is old: a demonstration knows no more than it shows
        return order if fact.relation in self.retries else tuple(source for source in order if source in right)
