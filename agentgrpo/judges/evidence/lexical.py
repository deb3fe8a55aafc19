"""Reads what passages say against the question, by the words that both have."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage, Task
from agentgrpo.judges.base import EvidenceGrade, QueryResults
from agentgrpo.judges.evidence.rarity import Rarity
from agentgrpo.retrieval.bm25 import analyzer
from agentgrpo.retrieval.corpus import searchable_text, well_formed
from agentgrpo.retrieval.rerank import FUNCTION_WORDS

_ASKING = frozenset({"thing", "things", "word", "words", "name", "names", "called", "mean", "means", "meaning"})
"""Words by which a question says what kind of answer it wants; no passage has to say them."""
MIN_SCORE, MIN_SCORE_WITHOUT_CORPUS = 0.9, 0.5
_MAX_CHAINS = 2000
"""Of one verdict; short ones are tried first."""
_CACHED_TEXTS = 4096


class _Word(NamedTuple):
    stem: str
    surface: str
    """In lower case."""
    is_name: bool
    """It has a capital, and does not begin the text."""


class _Asked(NamedTuple):
    """A word of the question that passages have to say."""

    stem: str
    weight: float
    times: int
    """The kind of the kind of a cat is told by two passages."""


class _Reading(NamedTuple):
    """A passage, read for one question."""

    cover: tuple[float, ...]
    """Of each asked word."""
    words: frozenset[str]
    new: frozenset[str]
    """Rare words that the question does not have: what an answer, or the next passage of a chain, is known by."""


class _Chain(NamedTuple):
    """Passages, each of which goes on from what the one before has brought up."""

    passages: tuple[int, ...]
    cover: tuple[float, ...]
    told: frozenset[str]
    """New words of all passages but the last."""
    new: frozenset[str]
    """Those that only the last has."""


class LexicalEvidence:
    """The best chain of all passages that the episode has shown, by how much of the question it covers:

        score = sum over the question's words of weight * covered / sum of weights,     in [0, 1]
                half of it where the chain's last passage says nothing new: then it cannot say the answer
        sufficient  <=>  score >= min_score

        weight   (1 + rarity) / 2; a word that stands twice in the question has to be told twice
        covered  a passage of the chain has the word (its stem), or the share that it has of its `thesaurus` entry
        new      a rare word (rarity >= min_rarity) that the question does not have
        chain    up to max_hops passages; each has a new word of the one before, and covers more of the question

    "Where was the founder of Velmor born?" names no Castin. "Velmor was founded by Castin." covers two of its three
    words and brings Castin up, "Castin was born in Roka." goes on from there, covers the third and says something new:
    1.0. Both without the other cover less, and so does "Velmor tours are popular." with either.

    Left out of the question are function words, words like "name", and words that no passage of the corpus has and that
    are no names: nothing found could say them. Scores of the retrievers play no part, so that all of them are judged
    alike. More passages never lower the score (as long as _MAX_CHAINS are enough)."""

    def __init__(
        self,
        *,
        min_score: float | None = None,
        min_rarity: float = 0.5,
        max_hops: int = 4,
        stemmer: str | None = "english",
        corpora: Mapping[str, Sequence[Passage]] | None = None,
        thesaurus: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """min_score: null = 0.9, and 0.5 without a corpus, where questions have more that nothing found could say.
        stemmer: language of the words, null = none. corpora: what rarity is counted in. thesaurus: a word of
        questions -> what passages say instead. Raises ConfigError."""
        if min_score is None:
            min_score = MIN_SCORE if corpora else MIN_SCORE_WITHOUT_CORPUS
        for name, value in {"min_score": min_score, "min_rarity": min_rarity}.items():
            if not (math.isfinite(value) and 0 < value <= 1):
                raise ConfigError(f"environment.evidence.{name}={value}; above 0 and up to 1 is allowed")
        if max_hops < 1:
            raise ConfigError(f"environment.evidence.max_hops={max_hops}; 1 or more is allowed")
        self._min_score, self._min_rarity, self._max_hops = min_score, min_rarity, max_hops
        self._written, self._stems = analyzer(None, lowercase=False), analyzer(stemmer)
        texts = (searchable_text(passage) for passages in (corpora or {}).values() for passage in passages)
        self._rarity = Rarity(self._stems.analyze(well_formed(text)) for text in texts)
        self._expansions = {
            stem: frozenset(s for words in others for s in self._stems.analyze(words))
            for word, others in (thesaurus or {}).items()
            for stem in self._stems.analyze(word)
        }
        self._words = lru_cache(maxsize=_CACHED_TEXTS)(self._split)

    def judge_round(self, task: Task, results: Sequence[QueryResults], seen: Sequence[Passage]) -> EvidenceGrade:
        """Grade all that was `seen`; each query of the round counts as sufficient where its own passages cover it."""
        score = self._score(task.question, seen)
        queries = sum(self._score(r.query, r.passages) >= self._min_score for r in results)
        return EvidenceGrade(sufficient=score >= self._min_score, score=score, num_sufficient_queries=queries)

    def _score(self, question: str, passages: Sequence[Passage]) -> float:
        asked = self._asked(question)
        if not asked:
            return 0.0
        total = math.fsum(word.weight * word.times for word in asked)
        own = {w.surface for w in self._words(question)}
        own |= {s for word in asked for s in self._expansions.get(word.stem, ())}
        readings = [self._read(searchable_text(passage), asked, own) for passage in passages]
        best = 0.0
        for number, chain in enumerate(self._chains(asked, readings)):
            covered = math.fsum(word.weight * share for word, share in zip(asked, chain.cover, strict=True))
            best = max(best, covered / total * (1.0 if chain.new else 0.5))
            if best >= 1.0 or number >= _MAX_CHAINS:
                break
        return min(1.0, best)

    def _asked(self, question: str) -> list[_Asked]:
        count: Counter[str] = Counter()
        weights: dict[str, float] = {}
        for stem, surface, is_name in self._words(question):
            rarity = self._rarity(stem, is_name=is_name)
            if surface in FUNCTION_WORDS or surface in _ASKING:
                continue
            if rarity is None and not is_name and stem not in self._expansions:
                continue
            count[stem] += 1
            weights[stem] = (1 + (1.0 if rarity is None else rarity)) / 2
        return [_Asked(stem, weight, count[stem]) for stem, weight in weights.items()]

    def _read(self, text: str, asked: Sequence[_Asked], own: set[str]) -> _Reading:
        words = self._words(text)
        stems = {word.stem for word in words}
        new = (
            w.surface for w in words if w.surface not in own and w.surface not in FUNCTION_WORDS and self._is_rare(w)
        )
        cover = tuple(self._cover(word.stem, stems) for word in asked)
        return _Reading(cover, frozenset(w.surface for w in words), frozenset(new))

    def _is_rare(self, word: _Word) -> bool:
        rarity = self._rarity(word.stem, is_name=word.is_name)
        return rarity is None or rarity >= self._min_rarity

    def _cover(self, word: str, stems: set[str]) -> float:
        expansion = self._expansions.get(word)
        if expansion is None:
            return float(word in stems)
        return max(len(expansion & stems) / len(expansion), 0.5 * (word in stems))

    def _chains(self, asked: Sequence[_Asked], readings: Sequence[_Reading]) -> Iterator[_Chain]:
        """Those of one passage first, then those of two, ..."""
        longest = [_Chain((i,), r.cover, frozenset(), r.new) for i, r in enumerate(readings) if any(r.cover)]
        for _ in range(self._max_hops):
            yield from longest
            longer = (more for chain in longest for more in _longer(chain, asked, readings))
            longest = list(islice(longer, _MAX_CHAINS))

    def _split(self, text: str) -> tuple[_Word, ...]:
        written, stems = self._written.analyze(well_formed(text)), self._stems.analyze(well_formed(text))
        return tuple(
            _Word(stem, word.lower(), place > 0 and word[0].isupper())
            for place, (stem, word) in enumerate(zip(stems, written, strict=True))
        )


def _longer(chain: _Chain, asked: Sequence[_Asked], readings: Sequence[_Reading]) -> Iterator[_Chain]:
    known = chain.told | chain.new
    for i, reading in enumerate(readings):
        if i in chain.passages or chain.new.isdisjoint(reading.words):
            continue
        both = zip(asked, chain.cover, reading.cover, strict=True)
        cover = tuple(min(float(word.times), before + more) for word, before, more in both)
        if cover != chain.cover:
            yield _Chain((*chain.passages, i), cover, known, reading.new - known)
