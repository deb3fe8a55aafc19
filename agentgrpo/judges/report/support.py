"""Whether passages say what a claim says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Message, Passage, Task
from agentgrpo.judges.evidence.lexical import LexicalEvidence
from agentgrpo.judges.llm.completer import Completer
from agentgrpo.judges.llm.judge import LLMJudge
from agentgrpo.retrieval.corpus import searchable_text

RUBRIC = """\
The question is a claim of a report, and the answer the passages that the report cites for it. Grade whether these \
passages say what the claim says: 1 = every part of it stands in them, in whatever words; 0 = a part of it does not, \
or they say otherwise. What you know yourself does not count."""


class ClaimSupport(Protocol):
    async def supports(self, task: Task, claim: str, passages: Sequence[Passage]) -> bool:
        """`passages`: what the claim cites, at least one. Raises JudgeError."""
        ...

    def counts(self) -> Mapping[str, float]:
        """As judges.base.CountingJudge."""
        ...

    async def close(self) -> None: ...


class LexicalSupport:
    """By words (judges.evidence.lexical): together the passages have all names and numbers of the claim, and at least
    min_score of its other words, by weight; and where the claim says no, they do so somewhere too. It knows neither
    synonyms nor who did what to whom."""

    def __init__(self, *, min_score: float = 0.5, stemmer: str | None = "english") -> None:
        """stemmer: language of the words, null = none. Raises ConfigError."""
        if not (math.isfinite(min_score) and 0 < min_score <= 1):
            raise ConfigError(f"judge.support.min_score={min_score}; above 0 and up to 1 is allowed")
        self._min_score, self._words = min_score, LexicalEvidence(stemmer=stemmer)

    async def supports(self, task: Task, claim: str, passages: Sequence[Passage]) -> bool:
        return self._words.said(claim, passages) >= self._min_score

    def counts(self) -> Mapping[str, float]:
        return {}

    async def close(self) -> None:
        """It holds nothing open."""


class LLMSupport:
    """A language model reads claim and passages: judges.llm.judge with the passages in the place of an answer. Equal
    claims about equal passages are asked about once. `counts` are that judge's."""

    def __init__(
        self,
        *,
        completer: Completer,
        cache: Path | None = None,
        min_score: float = 0.5,
        max_passage_chars: int = 2000,
        verdict_retries: int = 1,
        max_concurrent: int = 8,
        prompt_price: float = 0.0,
        completion_price: float = 0.0,
        seed: int = 0,
    ) -> None:
        """min_score: of a claim that is supported. max_passage_chars: of a passage that the model is shown. The others:
        see LLMJudge. Raises ConfigError."""
        if not (math.isfinite(min_score) and 0 < min_score <= 1):
            raise ConfigError(f"judge.support.min_score={min_score}; above 0 and up to 1 is allowed")
        if max_passage_chars < 1:
            raise ConfigError(f"judge.support.max_passage_chars={max_passage_chars}; 1 or more is allowed")
        self._min_score, self._max_passage_chars = min_score, max_passage_chars
        self._judge = LLMJudge(
            completer=completer,
            cache=cache,
            rubric=RUBRIC,
            control=False,
            verdict_retries=verdict_retries,
            max_concurrent=max_concurrent,
            prompt_price=prompt_price,
            completion_price=completion_price,
            canaries_per_eval=0,
            seed=seed,
        )

    async def supports(self, task: Task, claim: str, passages: Sequence[Passage]) -> bool:
        asked = Task(id=task.id, messages=(Message(role="user", content=claim),), references=())
        text = "\n\n".join(searchable_text(passage)[: self._max_passage_chars] for passage in passages)
        opinion = await self._judge.opinion(asked, [text])
        return opinion.scores[0] >= self._min_score

    def counts(self) -> Mapping[str, float]:
        return self._judge.counts()

    async def close(self) -> None:
        await self._judge.close()
