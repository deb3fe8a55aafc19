"""A language model reads the passages that were found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage, Task
from agentgrpo.judges.base import EvidenceGrade, QueryResults
from agentgrpo.judges.llm.completer import Completer
from agentgrpo.judges.llm.judge import LLMJudge
from agentgrpo.retrieval.corpus import searchable_text

RUBRIC = """\
The answer is a list of passages that a search has found. Grade whether they are enough to answer the question from: \
1 = they say all that the answer takes, every step of it; 0 = they do not, or speak of something else; between = they \
say part of it. What you know yourself does not count."""


class LLMEvidence:
    """LLMJudge with all passages seen in the place of an answer, and without references: the model is not told what is
    right. It is not asked again about a round that shows nothing new. `counts` are those of LLMJudge."""

    def __init__(
        self,
        *,
        completer: Completer,
        cache: Path | None = None,
        min_score: float = 0.5,
        max_passage_chars: int = 1000,
        max_chars: int = 12000,
        verdict_retries: int = 1,
        max_concurrent: int = 8,
        prompt_price: float = 0.0,
        completion_price: float = 0.0,
        seed: int = 0,
    ) -> None:
        """min_score: the lowest score of sufficient evidence. max_passage_chars: characters of a passage that the model
        is shown. max_chars: characters of all passages together, counted from the end. Other arguments: see LLMJudge.
        Raises ConfigError."""
        if not (math.isfinite(min_score) and 0 < min_score <= 1):
            raise ConfigError(f"environment.evidence.min_score={min_score}; above 0 and up to 1 is allowed")
        if min(max_passage_chars, max_chars) < 1:
            raise ConfigError(
                f"environment.evidence: max_passage_chars={max_passage_chars}, max_chars={max_chars}; 1 or more is "
                "allowed"
            )
        self._min_score, self._max_passage_chars, self._max_chars = min_score, max_passage_chars, max_chars
        self._judge = LLMJudge(
            completer=completer,
            cache=cache,
            rubric=RUBRIC,
            max_answer_chars=max_chars,
            control=False,
            verdict_retries=verdict_retries,
            max_concurrent=max_concurrent,
            prompt_price=prompt_price,
            completion_price=completion_price,
            canaries_per_eval=0,
            seed=seed,
        )

    async def judge_round(self, task: Task, results: Sequence[QueryResults], seen: Sequence[Passage]) -> EvidenceGrade:
        """Raises JudgeError: bad_verdict, or the completer's error."""
        text = "\n\n".join(searchable_text(passage)[: self._max_passage_chars] for passage in seen)
        opinion = await self._judge.opinion(replace(task, references=()), [text[-self._max_chars :]])
        score = opinion.scores[0]
        sufficient = score >= self._min_score
        return EvidenceGrade(sufficient=sufficient, score=score, num_sufficient_queries=len(results) * sufficient)

    def counts(self) -> Mapping[str, float]:
        return self._judge.counts()

    async def probe(self) -> None:
        """Raises JudgeError if the model does not reply."""
        await self._judge.probe()

    async def close(self) -> None:
        await self._judge.close()
