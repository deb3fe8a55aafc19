"""What a policy would do if retrieval did not help it: retrievers that withhold, mistake or falsify what was found.

    agentgrpo eval --ckpt RUN/checkpoints/step-000150 counterfactual=blank run.dir=RUN/blank

How far the score falls is how much of it is retrieval; what is left was known, or guessed. All of it is a function of
the query and the task set, so that two evaluations are the same whatever the order of their searches."""

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
"""What every retriever of a run is put behind."""
_WORD = re.compile(r"\w+")
_TRIES = 4
_MIN_QUESTIONS = 2


def blank() -> Counterfactual:
    """`counterfactual: blank`: as many passages, with their scores, and nothing in them."""
    return BlankRetriever


def shuffled(*, tasks: Sequence[Task]) -> Counterfactual:
    """`counterfactual: shuffled`: what is found for the question of another task. Raises ConfigError where there is
    none."""
    questions = tuple(dict.fromkeys(task.question for task in tasks))
    if len(questions) < _MIN_QUESTIONS:
        raise ConfigError("counterfactual=shuffled needs the questions of 2 tasks or more; use counterfactual=blank")
    return lambda retriever: ShuffledRetriever(retriever, questions=questions)


def swapped(*, tasks: Sequence[Task]) -> Counterfactual:
    """`counterfactual: swapped`: wherever the answer of a task stands, that of another one, of the same kind where
    there is one. Raises ConfigError where all tasks have the same answer."""
    others = other_answers(tasks)
    if not others:
        raise ConfigError("counterfactual=swapped needs tasks with different answers; use counterfactual=blank")
    return lambda retriever: SwappedRetriever(retriever, others=others)


class _Behind:
    """A retriever behind a counterfactual."""

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
    """Asks twice: what was found for the query itself is taken from what was found for the other question, so that
    none of it is shown by chance. That may leave fewer than top_k passages."""

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
        """A few other questions, of which mostly the first will do."""
        others = (question for question in _ring(self._questions, _draw(query)) if question != query)
        return islice(others, _TRIES)


class SwappedRetriever(_Behind):
    """Passages are found as they are, and shown with the answers in them exchanged, in titles too; not those that the
    query names, which it is about."""

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
        """`text` with every answer in it, the longest first, exchanged for its other one; whole words only."""
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
    """In whole words: a query about 1960 does not name the answer 60."""
    return answer in query and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", query) is not None


def other_answers(tasks: Sequence[Task]) -> dict[str, str]:
    """Answer -> the one that takes its place: never one that its own task accepts. Answers without a word in them, and
    with signs around their words, are none that could be found in a text."""
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
    """All of them, from one on."""
    return (texts[(first + i) % len(texts)] for i in range(len(texts)))


def _is_words(text: str) -> bool:
    words = _WORD.findall(text)
    return bool(words) and text.startswith(words[0]) and text.endswith(words[-1])


def _in_order(answers: Iterable[str]) -> list[str]:
    """Any order but that of the alphabet, which would give numbers their neighbours."""
    return sorted(answers, key=lambda answer: (_draw(answer), answer))


def _draw(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
