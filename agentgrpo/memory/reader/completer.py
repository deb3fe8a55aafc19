"""A reader that shows a language model the best documents and takes its answer: one prompt a question."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentgrpo.dialogue import Question
from agentgrpo.judges.llm.completer import Completer
from agentgrpo.memory.base import Search
from agentgrpo.memory.reader.cloze import UNKNOWN
from agentgrpo.memory.reader.model import ModelReader, Reading
from agentgrpo.memory.reader.prompt import asked
from agentgrpo.memory.schema import CORE
from agentgrpo.types import Passage


class CompleterReader(ModelReader):
    """The core paragraph (always, as in Mem-alpha: Wang et al. 2025, arXiv 2509.25911) and the top_k best documents are
    shown, oldest first, each up to max_chars. Where there are none of these, nothing is asked: "unknown"."""

    def __init__(
        self,
        *,
        completer: Completer,
        search: Search | None = None,
        top_k: int = 10,
        max_chars: int = 2000,
        cache: Path | None = None,
        max_concurrent: int = 8,
        prompt_price: float = 0.0,
        completion_price: float = 0.0,
    ) -> None:
        """Prices are per 1,000 tokens. Raises ConfigError."""
        super().__init__(
            name="completer",
            completer=completer,
            search=search,
            cache=cache,
            max_concurrent=max_concurrent,
            prompt_price=prompt_price,
            completion_price=completion_price,
            top_k=top_k,
            max_chars=max_chars,
        )
        self._top_k, self._max_chars = top_k, max_chars

    def _readings(self, questions: Sequence[Question], documents: tuple[Passage, ...]) -> list[Reading]:
        searched = [d for d in documents if d.title != CORE]
        index = self._search.over(searched)
        place = {_text(d): i for i, d in enumerate(documents)}
        core = [d for d in documents if d.title == CORE]
        readings = []
        for question in questions:
            found = [*core, *index.search(question.text, top_k=self._top_k)]
            places = sorted(place[_text(d)] for d in found)
            readings.append(Reading(question, tuple(documents[i] for i in places)))
        return readings

    async def _read(self, reading: Reading) -> str:
        if not reading.documents:
            return UNKNOWN
        prompt = asked(reading.question, reading.documents, seed=reading.key(""), max_chars=self._max_chars)
        return (await self._model.complete(prompt)).text


def _text(document: Passage) -> tuple[str, str, str]:
    return document.title, document.id, document.text
