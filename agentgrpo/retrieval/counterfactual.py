"""Tests a policy without the help of retrieval: retrievers that withhold, confuse or falsify the passages found.

    agentgrpo eval --ckpt RUN/checkpoints/step-000150 counterfactual=blank run.dir=RUN/blank

The drop in score measures the share of retrieval; the rest was known or guessed. Results depend only on the query and
the task set, so that two evaluations are equal whatever the order of their searches.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import chain, islice

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage, Task
from agentgrpo.retrieval.base import Probed, Retriever

Counterfactual = Callable[[Retriever], Retriever]
"""Wraps every retriever of a run."""
_WORD = re.compile(r"\w+")
_TRIES = 4
_MIN_QUESTIONS = 2


def blank() -> Counterfactual:
    """`counterfactual: blank`: the same number of passages with their scores, but without content."""
    return BlankRetriever


def shuffled(*, tasks: Sequence[Task]) -> Counterfactual:
    """`counterfactual: shuffled`: the passages found for the question of another task. Raises ConfigError for fewer
    than two different questions."""
    questions = tuple(dict.fromkeys(task.question for task in tasks))
    if len(questions) < _MIN_QUESTIONS:
        raise ConfigError("counterfactual=shuffled needs the questions of 2 tasks or more; use counterfactual=blank")
    return lambda retriever: ShuffledRetriever(retriever, questions=questions)


def swapped(*, tasks: Sequence[Task]) -> Counterfactual:
    """`counterfactual: swapped`: every answer of a task is replaced by the answer of another, of the same kind if
    possible. Raises ConfigError if all tasks have the same answer."""
    others = other_answers(tasks)
    if not others:
        raise ConfigError("counterfactual=swapped needs tasks with different answers; use counterfactual=blank")
    return lambda retriever: SwappedRetriever(retriever, others=others)


class _Behind:
    """A retriever wrapped by a counterfactual."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever

    async def probe(self) -> None:
        if isinstance(self._retriever, Probed):
            await self._retriever.probe()

    async def close(self) -> None:
        await self._retriever.close()


class BlankRetriever(_Behind):
    async def search(self, query: str, *, top_k: int) -> list[Passage]:
        found = await self._retriever.search(query, top_k=top_k)
        return [replace(passage, text="", title="", url="") for passage in found]


class ShuffledRetriever(_Behind):
    """Searches twice: passages found for the query itself are removed from those found for another question, so that no
    relevant passage appears by chance. This may leave fewer than top_k passages."""

    def __init__(self, retriever: Retriever, *, questions: Sequence[str]) -> None:
        super().__init__(retriever)
        self._questions = questions

    async def search(self, query: str, *, top_k: int) -> list[Passage]:
        own = asyncio.ensure_future(self._retriever.search(query, top_k=top_k))
        found: list[Passage] = []
        try:
            for other in self._others(query):
                passages = await self._retriever.search(other, top_k=top_k)
                known = {passage.id for passage in await own}
                found = [passage for passage in passages if passage.id not in known]
                if found:
                    break
        finally:
            own.cancel()
            await asyncio.gather(own, return_exceptions=True)
        return found

    def _others(self, query: str) -> Iterator[str]:
        """A few other questions; the first usually suffices."""
        others = (question for question in _ring(self._questions, _draw(query)) if question != query)
        return islice(others, _TRIES)


class SwappedRetriever(_Behind):
    """Finds the real passages, and exchanges the answers in their texts and titles. Answers that the query names stay,
    because the query is about them."""

    def __init__(self, retriever: Retriever, *, others: Mapping[str, str]) -> None:
        super().__init__(retriever)
        self._others = others
        self._words = max(len(_WORD.findall(answer)) for answer in others)

    async def search(self, query: str, *, top_k: int) -> list[Passage]:
        found = await self._retriever.search(query, top_k=top_k)
        return [
            replace(p, text=self._falsified(p.text, query), title=self._falsified(p.title, query), url="")
            for p in found
        ]

    def _falsified(self, text: str, query: str) -> str:
        """`text` with every answer replaced by its counterpart, the longest answers first; whole words only."""
        words = list(_WORD.finditer(text))
        parts, at, i = [], 0, 0
        while i < len(words):
            taken = 1
            for count in range(min(self._words, len(words) - i), 0, -1):
                start, end = words[i].start(), words[i + count - 1].end()
                if (other := self._others.get(text[start:end])) is not None:
                    parts += [text[at:start], text[start:end] if _names(query, text[start:end]) else other]
                    at, taken = end, count
                    break
            i += taken
        return "".join([*parts, text[at:]])


def _names(query: str, answer: str) -> bool:
    """Whether the query contains the answer in whole words: a query about 1960 does not name the answer 60."""
    return answer in query and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", query) is not None


def other_answers(tasks: Sequence[Task]) -> dict[str, str]:
    """Answer -> its replacement, which is never an answer that the same task accepts. Answers without a word, or with
    signs around their words, are left out, because they could not be found in a text."""
    kinds: dict[str, dict[str, set[str]]] = {}
    for task in tasks:
        references = [text for text in task.references if _is_words(text)]
        for answer in references:
            of_kind = kinds.setdefault(str(task.metadata.get("kind", "")), {})
            of_kind.setdefault(answer, set()).update(references)
    everywhere = _in_order({answer for of_kind in kinds.values() for answer in of_kind})
    place = {answer: i for i, answer in enumerate(everywhere)}
    others: dict[str, str] = {}
    for of_kind in kinds.values():
        ring = _in_order(of_kind)
        for i, answer in enumerate(ring):
            after = chain(_ring(ring, i), _ring(everywhere, place[answer]))
            found = next((other for other in after if other not in of_kind[answer]), None)
            if found is not None:
                others.setdefault(answer, found)
    return others


def _ring(texts: Sequence[str], first: int) -> Iterator[str]:
    """The texts in cyclic order, starting at index `first`."""
    return (texts[(first + i) % len(texts)] for i in range(len(texts)))


def _is_words(text: str) -> bool:
    words = _WORD.findall(text)
    return bool(words) and text.startswith(words[0]) and text.endswith(words[-1])


def _in_order(answers: Iterable[str]) -> list[str]:
    """A pseudo-random but fixed order; alphabetical order would give numbers their neighbours."""
    return sorted(answers, key=lambda answer: (_draw(answer), answer))


def _draw(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
