"""Scripted policies for this world: the oracle, and the wasteful one that demonstrates for warm starts.

Both read the context as a policy does: they parse past searches and results from its text. They know the question's
facts beforehand, so that they recognise the evidence."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from agentgrpo.core.chance import uniform
from agentgrpo.core.errors import ConfigError
from agentgrpo.worlds.almanac.world import AlmanacFact, AlmanacQuestion, texts

_SEARCH = re.compile(r'<search retriever="(web|vdb)" rerank="(?:true|false)"> ([^<]*)</search>')
_SHOWN = re.compile(r"^\[(R\d+Q\d+D\d+)\] (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlmanacHabits:
    """How wasteful and how careless demonstrations are: probabilities in [0, 1], and the most searches they make.

    `*_needed` applies if the choice is really needed; training can build on this slight preference."""

    web: float = 0.62
    web_needed: float = 0.90
    rerank: float = 0.55
    rerank_needed: float = 0.80
    idle: float = 0.65
    """Make one more search on the subject, although the answer has been found."""
    give_up: float = 0.30
    """Answer "unknown" after a search that found nothing."""
    half_way: float = 0.60
    """Answer a two-hop question with the result of the first hop, although the second hop was found."""
    unknown: float = 0.05
    """Answer "unknown" in spite of the evidence."""
    max_searches: int = 4

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "max_searches" and not 0 <= value <= 1:
                raise ConfigError(f"habits.{field.name}={value}; a probability in [0, 1] is allowed")
        if self.max_searches < 1:
            raise ConfigError(f"habits.max_searches={self.max_searches}; at least 1 is allowed")


class ContextReading:
    """The contents of a context: the searches made, as (retriever, query), and the label of every passage shown."""

    def __init__(self, context: str) -> None:
        self.searches = [(retriever, query) for retriever, query in _SEARCH.findall(context)]
        self.labels: dict[str, str] = {}
        for label, text in _SHOWN.findall(context):
            self.labels.setdefault(text, label)

    def next_hop(self, question: AlmanacQuestion) -> int:
        """Number of leading facts of the question that have been shown."""
        for hop, fact in enumerate(question.hops):
            if fact.sentence not in self.labels:
                return hop
        return len(question.hops)

    def answer(self, fact: AlmanacFact) -> str:
        return f"<answer> {fact.value} [{self.labels[fact.sentence]}]</answer>"


def search(query: str, *, web: bool, rerank: bool) -> str:
    retriever, flag = "web" if web else "vdb", "true" if rerank else "false"
    return f'<search retriever="{retriever}" rerank="{flag}"> {query}</search>'


UNKNOWN = "<answer> unknown</answer>"


class AlmanacOracle:
    """Makes the fewest and cheapest searches that prove the answer: web and rerank only if the fact needs them."""

    def __init__(self, question: AlmanacQuestion) -> None:
        self.question = question

    def act(self, context: str) -> str:
        reading = ContextReading(context)
        hop = reading.next_hop(self.question)
        if hop == len(self.question.hops):
            return reading.answer(self.question.hops[-1])
        if len(reading.searches) > hop:  # the search for this hop has been made and did not show it
            return UNKNOWN
        fact = self.question.hops[hop]
        return search(fact.query, web=fact.web_only, rerank=fact.rule.needs_rerank)


class Spendthrift:
    """Searches the web and reranks without need, makes idle searches, and mixes up or doubts its findings. Its choices
    are a function of (key, position in the episode): equal contexts get equal acts."""

    def __init__(self, question: AlmanacQuestion, habits: AlmanacHabits, *, key: str) -> None:
        self.question, self.habits, self.key = question, habits, key

    def act(self, context: str) -> str:
        reading, hops = ContextReading(context), self.question.hops
        hop = reading.next_hop(self.question)
        if hop == len(hops):
            return self._idle_search(reading) or self._answer(reading)
        return self._search_for(hops[hop], reading)

    def _answer(self, reading: ContextReading) -> str:
        if self._does("unknown", self.habits.unknown):
            return UNKNOWN
        half_way = len(self.question.hops) > 1 and self._does("half_way", self.habits.half_way)
        return reading.answer(self.question.hops[0 if half_way else -1])

    def _search_for(self, fact: AlmanacFact, reading: ContextReading) -> str:
        tried = [retriever for retriever, query in reading.searches if query == fact.query]
        if len(tried) == 2 or len(reading.searches) >= self.habits.max_searches:
            return UNKNOWN
        if tried and self._does(f"give_up {fact.query}", self.habits.give_up):
            return UNKNOWN
        # a query that found nothing in one source is worth trying only in the other
        web = self._web(fact.web_only, reading) if not tried else tried == ["vdb"]
        return search(fact.query, web=web, rerank=self._rerank(fact.rule.needs_rerank, reading))

    def _idle_search(self, reading: ContextReading) -> str | None:
        query = texts().idle_query.format(subject=self.question.hops[-1].subject)
        done = any(made == query for _, made in reading.searches)
        if done or len(reading.searches) >= self.habits.max_searches or not self._does("idle", self.habits.idle):
            return None
        return search(query, web=self._web(False, reading), rerank=self._rerank(False, reading))

    def _web(self, needed: bool, reading: ContextReading) -> bool:
        return self._does(f"web {len(reading.searches)}", self.habits.web_needed if needed else self.habits.web)

    def _rerank(self, needed: bool, reading: ContextReading) -> bool:
        chance = self.habits.rerank_needed if needed else self.habits.rerank
        return self._does(f"rerank {len(reading.searches)}", chance)

    def _does(self, what: str, chance: float) -> bool:
        return uniform("spendthrift", self.key, what) < chance
