"""A reader that lets a language model search: replies are strict JSON, {"search": "..."} or {"answer": "..."}."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from agentgrpo.dialogue import Question
from agentgrpo.judges.llm.completer import Completer
from agentgrpo.judges.llm.verdict import one_object
from agentgrpo.memory.base import Search
from agentgrpo.memory.reader.model import ModelReader, Reading
from agentgrpo.memory.reader.prompt import again, opening, results
from agentgrpo.types import Message, Passage


class Move(NamedTuple):
    """What the model wants."""

    name: Literal["search", "answer"]
    text: str


class AgenticReader(ModelReader):
    """The model sees no document but those that its searches bring, at most max_searches of them. A reply of another
    form, or a search where none is left, is asked for again once a question; after that its answer is "". `counts`
    also has searches and malformed."""

    def __init__(
        self,
        *,
        completer: Completer,
        search: Search | None = None,
        top_k: int = 5,
        max_searches: int = 3,
        max_chars: int = 2000,
        cache: Path | None = None,
        max_concurrent: int = 8,
        prompt_price: float = 0.0,
        completion_price: float = 0.0,
    ) -> None:
        """top_k: documents a search brings, each up to max_chars. Prices are per 1,000 tokens. Raises ConfigError."""
        super().__init__(
            name="agentic",
            completer=completer,
            search=search,
            cache=cache,
            max_concurrent=max_concurrent,
            prompt_price=prompt_price,
            completion_price=completion_price,
            top_k=top_k,
            max_searches=max_searches,
            max_chars=max_chars,
        )
        self._top_k, self._max_searches, self._max_chars = top_k, max_searches, max_chars
        self._counts |= {"searches": 0.0, "malformed": 0.0}

    def _readings(self, questions: Sequence[Question], documents: tuple[Passage, ...]) -> list[Reading]:
        return [Reading(question, documents) for question in questions]

    async def _read(self, reading: Reading) -> str:
        seed, index = reading.key(""), self._search.over(reading.documents)
        kinds = list(dict.fromkeys(d.title for d in reading.documents if d.title))
        messages = list(opening(reading.question, kinds, seed=seed, max_searches=self._max_searches))
        left, may_repeat = self._max_searches, True
        while True:
            reply = (await self._model.complete(messages)).text
            messages.append(Message(role="assistant", content=reply))
            move = read_move(reply)
            if move is not None and move.name == "answer":
                return move.text
            if move is not None and left:
                left -= 1
                self._counts["searches"] += 1
                found = index.search(move.text, top_k=self._top_k)
                messages.append(results(found, left=left, seed=seed, max_chars=self._max_chars))
                continue
            self._counts["malformed"] += 1
            if not may_repeat:
                return ""
            may_repeat = False
            messages.append(again(left))


def read_move(text: str) -> Move | None:
    """None for what is not one JSON object of one text, named search or answer."""
    try:
        row = one_object(text)
    except ValueError:
        return None
    if not isinstance(row, dict) or len(row) != 1:
        return None
    match row:
        case {"search": str(words)}:
            return Move("search", words)
        case {"answer": str(words)}:
            return Move("answer", words)
    return None
