"""What readers that ask a language model have in common: the documents are searched, the answers kept, the calls
counted, and equal questions that are under way asked once."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentgrpo.concurrency import Batcher, Limiter
from agentgrpo.dialogue import Question
from agentgrpo.errors import ConfigError, JudgeError
from agentgrpo.judges.llm.billing import Billed
from agentgrpo.judges.llm.completer import Completer
from agentgrpo.judges.llm.fence import digest
from agentgrpo.memory.base import Search
from agentgrpo.memory.reader.answers import AnswerCache
from agentgrpo.memory.reader.prompt import VERSION
from agentgrpo.memory.search.searches import bm25
from agentgrpo.types import Passage

MAX_ANSWER_CHARS = 1000


@dataclass(frozen=True, slots=True)
class Reading:
    """One question, and the documents that it is answered from."""

    question: Question
    documents: tuple[Passage, ...]

    def key(self, identity: str) -> str:
        """What the answer is kept under: everything that decides it."""
        shape = json.dumps([VERSION, len(self.question.options), len(self.documents)])
        texts = [text for d in self.documents for text in (d.title, d.text)]
        return digest(shape, identity, self.question.text, *self.question.options, *texts)


class ModelReader(ABC):
    """`counts`: questions, empty (asked of no documents), cached, calls, prompt_tokens, completion_tokens, cost."""

    def __init__(
        self,
        *,
        name: str,
        completer: Completer,
        search: Search | None,
        cache: Path | None,
        max_concurrent: int,
        prompt_price: float,
        completion_price: float,
        **limits: int,
    ) -> None:
        """name: of the reader, for its identity. search: None = bm25. limits: settings of 1 or more, which belong to
        the identity. Raises ConfigError."""
        for key, value in {**limits, "max_concurrent": max_concurrent}.items():
            if value < 1:
                raise ConfigError(f"agent.reader.{key}={value}; 1 or more is allowed")
        self._search = search if search is not None else bm25()
        self.identity = json.dumps([name, completer.identity, self._search.identity, limits])
        self._model = Billed(
            completer, prompt_price=prompt_price, completion_price=completion_price, setting="agent.reader"
        )
        self._cache = AnswerCache(cache, setting="agent.reader.cache") if cache is not None else None
        self._counts = dict.fromkeys(("questions", "empty", "cached"), 0.0)
        self._asked: Batcher[None, Reading, str] = Batcher(self._answer, max_batch=1, limiter=Limiter(max_concurrent))

    async def answer(self, questions: Sequence[Question], documents: Sequence[Passage]) -> list[str]:
        """See memory.base.Reader. Raises the first question's JudgeError."""
        self._counts["questions"] += len(questions)
        held = tuple(d for d in documents if d.text.strip())
        if not held:
            self._counts["empty"] += len(questions)
            return [""] * len(questions)
        readings = self._readings(questions, held)
        found = await asyncio.gather(*(self._asked.ask(None, r) for r in readings), return_exceptions=True)
        for answer in found:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in found if isinstance(answer, str)]

    def counts(self) -> dict[str, float]:
        return {**self._counts, **self._model.counts}

    async def probe(self) -> None:
        """Raises ConfigError where the model behind an endpoint does not reply, and nothing that it said is kept."""
        try:
            await self._model.probe()
        except JudgeError as e:
            if self._cache is None or not await self._cache.holds_any():
                raise ConfigError(
                    f"the model that reads does not reply: {e}; start its server, or correct agent.reader.completer"
                ) from e

    async def close(self) -> None:
        if self._cache is not None:
            self._cache.close()
        await self._model.close()

    @abstractmethod
    def _readings(self, questions: Sequence[Question], documents: tuple[Passage, ...]) -> list[Reading]:
        """One for each question."""

    @abstractmethod
    async def _read(self, reading: Reading) -> str:
        """The answer, asked for. Raises JudgeError."""

    async def _answer(self, group: None, readings: list[Reading], arrived: float) -> list[str]:
        (reading,) = readings
        key = reading.key(self.identity)
        kept = await self._cache.find(key) if self._cache is not None else None
        if kept is not None:
            self._counts["cached"] += 1
            return [kept]
        answer = " ".join((await self._read(reading)).split())[:MAX_ANSWER_CHARS]
        return [await self._cache.keep(key, answer) if self._cache is not None else answer]
