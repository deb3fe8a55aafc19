"""Checks whether passages say what a claim says."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Protocol

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Message, Passage, Task
from agentgrpo.judges.answers import denies
from agentgrpo.judges.evidence.rarity import Rarity
from agentgrpo.judges.llm.completer import Completer
from agentgrpo.judges.llm.control import invented_passage
from agentgrpo.judges.llm.judge import LLMJudge
from agentgrpo.judges.report.claims import SAYS_NOTHING
from agentgrpo.retrieval.bm25 import analyzer
from agentgrpo.retrieval.corpus import searchable_text, well_formed

RUBRIC = """\
The question is a claim of a report, and the answer the passages that the report cites for it. Grade whether these \
passages say what the claim says: 1 = every part of it stands in them, in whatever words; 0 = a part of it does not, \
or they say otherwise. What you know yourself does not count."""


class ClaimSupport(Protocol):
    async def supports(self, task: Task, claim: str, passages: Sequence[Passage]) -> bool:
        """`passages`: the passages that the claim cites, at least one. Raises JudgeError."""
        ...

    def counts(self) -> Mapping[str, float]:
        """See judges.base.CountingJudge."""
        ...

    async def close(self) -> None: ...


class LexicalSupport:
    """Support by shared words. Together the passages must have all names and numbers of the claim, all its words that
    a reference of the task has, and at least min_score of its other words, by weight. If the claim has a negation, the
    passages must have one too. The word that opens a claim counts as a name, unless a comma follows it. This check
    knows neither synonyms nor who did what to whom.

        weight   (1 + rarity) / 2: long words are rare (judges.evidence.rarity, without a corpus)
    """

    def __init__(self, *, min_score: float = 0.5, stemmer: str | None = "english") -> None:
        """stemmer: language of the stemmer, null = no stemming. Raises ConfigError."""
        if not (math.isfinite(min_score) and 0 < min_score <= 1):
            raise ConfigError(f"judge.support.min_score={min_score}; above 0 and up to 1 is allowed")
        self._min_score = min_score
        self._written, self._stems = analyzer(None, lowercase=False), analyzer(stemmer)
        self._rarity = Rarity(())

    async def supports(self, task: Task, claim: str, passages: Sequence[Passage]) -> bool:
        wanted = {stem for reference in task.references for _, stem in self._words(reference)}
        return self._said(claim, [searchable_text(passage) for passage in passages], wanted) >= self._min_score

    def counts(self) -> Mapping[str, float]:
        return {}

    async def close(self) -> None:
        """Do nothing: no resource is open."""

    def _said(self, claim: str, texts: Sequence[str], wanted: Set[str]) -> float:
        """The share of ordinary words that the passages have; 0 if they lack a name, a number or a wanted word."""
        own = [(word, stem) for word, stem in self._words(claim) if word.lower() not in SAYS_NOTHING]
        if not own:
            return 0.0
        opening = own[0][0]
        opens = claim[:1].isupper() and re.match(rf"{re.escape(opening)}(?!,)", claim) is not None
        named = {s for w, s in own[1 if claim.startswith(opening) else 0 :] if w[:1].isupper()}
        named |= {s for w, s in own if s in wanted or any(map(str.isdigit, w))} | ({own[0][1]} if opens else set())
        stems = {stem for text in texts for _, stem in self._words(text)}
        if not named <= stems or (denies(claim) and not any(map(denies, texts))):
            return 0.0
        weights = {stem: (1 + (self._rarity(stem) or 0.0)) / 2 for _, stem in own if stem not in named}
        total = math.fsum(weights.values())
        return math.fsum(weight for stem, weight in weights.items() if stem in stems) / total if weights else 1.0

    def _words(self, text: str) -> list[tuple[str, str]]:
        """(word as written, stem) of each word."""
        text = well_formed(text)
        return list(zip(self._written.analyze(text), self._stems.analyze(text), strict=True))


class LLMSupport:
    """A language model reads the claim and its passages: LLMJudge with the passages in the place of an answer. Equal
    claims about equal passages are asked about once. `counts` are those of LLMJudge.

    Two controls detect a model that obeys what it reads. An instruction in the passages works for a made-up claim too;
    the grade of that claim is subtracted (judges.llm.control). An instruction in the claim works for a made-up passage
    too; the claim is then unsupported, and counts as `hijacked`."""

    def __init__(
        self,
        *,
        completer: Completer,
        cache: Path | None = None,
        min_score: float = 0.5,
        max_passage_chars: int = 2000,
        control: bool = True,
        verdict_retries: int = 1,
        max_concurrent: int = 8,
        prompt_price: float = 0.0,
        completion_price: float = 0.0,
        canaries_per_eval: int = 20,
        seed: int = 0,
    ) -> None:
        """min_score: the lowest grade of a supported claim. max_passage_chars: characters of a passage that the model
        is shown. control: ask the two control questions about each supported claim. Other arguments: see LLMJudge.
        Raises ConfigError."""
        if not (math.isfinite(min_score) and 0 < min_score <= 1):
            raise ConfigError(f"judge.support.min_score={min_score}; above 0 and up to 1 is allowed")
        if max_passage_chars < 1:
            raise ConfigError(f"judge.support.max_passage_chars={max_passage_chars}; 1 or more is allowed")
        self._min_score, self._max_passage_chars, self._control = min_score, max_passage_chars, control
        self._hijacked = 0
        self.canaries_per_eval = canaries_per_eval
        self._judge = LLMJudge(
            completer=completer,
            cache=cache,
            rubric=RUBRIC,
            control=control,
            verdict_retries=verdict_retries,
            max_concurrent=max_concurrent,
            prompt_price=prompt_price,
            completion_price=completion_price,
            canaries_per_eval=canaries_per_eval,
            seed=seed,
        )

    async def supports(self, task: Task, claim: str, passages: Sequence[Passage]) -> bool:
        asked = Task(id=task.id, messages=(Message(role="user", content=claim),), references=())
        text = "\n\n".join(searchable_text(passage)[: self._max_passage_chars] for passage in passages)
        [grade] = await self._judge.grade(asked, [text])
        if grade.score < self._min_score or not self._control:
            return grade.score >= self._min_score
        opinion = await self._judge.opinion(asked, [invented_passage(claim)])
        is_obeyed = opinion.scores[0] >= self._min_score
        self._hijacked += is_obeyed
        return not is_obeyed

    def counts(self) -> Mapping[str, float]:
        counts = self._judge.counts()
        return {**counts, "hijacked": counts["hijacked"] + self._hijacked}

    async def close(self) -> None:
        await self._judge.close()
