"""Reads passages against a question: chains of passages that cover its words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage
from agentgrpo.judges.base import EvidenceGrade, QueryResults
from agentgrpo.judges.evidence.rarity import Rarity
from agentgrpo.retrieval.bm25 import analyzer
from agentgrpo.retrieval.corpus import searchable_text, well_formed
from agentgrpo.retrieval.rerank import FUNCTION_WORDS

Shares = npt.NDArray[np.float64]
_ASKING = frozenset({"thing", "things", "word", "words", "name", "names", "called", "mean", "means", "meaning"})
"""Words with which a question names the kind of answer; passages need not contain them."""
_MAX_CHAINS = 2000
"""Maximum chains of one verdict; short chains are tried first."""
_CACHED_TEXTS = 4096


_MAX_WINDOW = 2
"""Maximum words of a passage that together may cover one word of the question."""
_LEAST_ALIKE = 0.2
"""A smaller similarity covers nothing, because chains would grow by chance."""


class Alike(Protocol):
    def __call__(self, words: Sequence[str], phrases: Sequence[str]) -> Shares:
        """The similarities of meaning in [0, 1], [words, phrases]."""
        ...


class _Word(NamedTuple):
    stem: str
    surface: str
    """In lower case."""
    is_name: bool
    """The word has a capital and does not begin the text."""


class _Asked(NamedTuple):
    """A word of the question that passages have to contain."""

    stem: str
    weight: float
    times: int
    """Occurrences in the question: "the kind of the kind of a cat" needs two passages."""
    meaning: str
    """The word as written; "" for a name or a number, which no other word can replace."""


class _Reading(NamedTuple):
    """A passage, read for one question."""

    cover: tuple[float, ...]
    """The coverage of each asked word."""
    words: frozenset[str]
    new: frozenset[str]
    """Rare words that the question does not have: candidates for the answer, or for the link to the next passage."""


class _Chain(NamedTuple):
    """Passages, each of which contains a new word of the one before."""

    passages: tuple[int, ...]
    cover: tuple[float, ...]
    told: frozenset[str]
    """New words of all passages but the last."""
    new: frozenset[str]
    """New words that only the last passage has."""


class Chains:
    """Reads passages against a question: LexicalEvidence has the formula. With `alike`, words of similar meaning cover
    a word of the question in part, too: see EmbeddingEvidence."""

    def __init__(
        self,
        *,
        min_rarity: float,
        max_hops: int,
        stemmer: str | None,
        corpora: Mapping[str, Sequence[Passage]] | None,
        thesaurus: Mapping[str, Sequence[str]] | None,
        alike: Alike | None = None,
    ) -> None:
        """Arguments: see LexicalEvidence and EmbeddingEvidence. Raises ConfigError."""
        if not (math.isfinite(min_rarity) and 0 < min_rarity <= 1):
            raise ConfigError(f"environment.evidence.min_rarity={min_rarity}; above 0 and up to 1 is allowed")
        if max_hops < 1:
            raise ConfigError(f"environment.evidence.max_hops={max_hops}; 1 or more is allowed")
        self._min_rarity, self._max_hops, self._alike = min_rarity, max_hops, alike
        self._written, self._stems = analyzer(None, lowercase=False), analyzer(stemmer)
        texts = (searchable_text(passage) for passages in (corpora or {}).values() for passage in passages)
        self._rarity = Rarity(self._stems.analyze(well_formed(text)) for text in texts)
        self._expansions = {
            stem: frozenset(s for words in others for s in self._stems.analyze(words))
            for word, others in (thesaurus or {}).items()
            for stem in self._stems.analyze(word)
        }
        self._words = lru_cache(maxsize=_CACHED_TEXTS)(self._split)

    def grade(
        self, question: str, results: Sequence[QueryResults], seen: Sequence[Passage], *, min_score: float
    ) -> EvidenceGrade:
        """Grade all passages `seen`. A query of the round counts as sufficient if its own passages cover it."""
        score = self.score(question, seen)
        queries = sum(self.score(r.query, r.passages) >= min_score for r in results)
        return EvidenceGrade(sufficient=score >= min_score, score=score, num_sufficient_queries=queries)

    def score(self, question: str, passages: Sequence[Passage]) -> float:
        asked = self._asked(question)
        if not asked:
            return 0.0
        total = math.fsum(word.weight * word.times for word in asked)
        own = {w.surface for w in self._words(question)}
        own |= {s for word in asked for s in self._expansions.get(word.stem, ())}
        texts = [searchable_text(passage) for passage in passages]
        readings = [self._read(text, asked, own) for text in texts]
        if self._alike is not None:
            readings = self._with_alike(self._alike, asked, texts, readings)
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
        meanings: dict[str, str] = {}
        for stem, surface, is_name in self._words(question):
            rarity = self._rarity(stem, is_name=is_name)
            if surface in FUNCTION_WORDS or surface in _ASKING:
                continue
            if rarity is None and not is_name and stem not in self._expansions:
                continue
            count[stem] += 1
            weights[stem] = (1 + (1.0 if rarity is None else rarity)) / 2
            meanings[stem] = "" if is_name or not surface.isalpha() else surface
        return [_Asked(stem, weight, count[stem], meanings[stem]) for stem, weight in weights.items()]

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

    def _with_alike(
        self, alike: Alike, asked: Sequence[_Asked], texts: Sequence[str], readings: Sequence[_Reading]
    ) -> list[_Reading]:
        """The readings, with the coverage by words of similar meaning added by one call of `alike`."""
        rows = [i for i, word in enumerate(asked) if word.meaning]
        said = {word.stem for word in asked}
        windows = [
            _windows(self._words(text), said) if any(reading.cover[i] < 1 for i in rows) else []
            for text, reading in zip(texts, readings, strict=True)
        ]
        columns = {text: i for i, text in enumerate(dict.fromkeys(text for found in windows for _, text in found))}
        if not columns:
            return list(readings)
        shares = alike([asked[i].meaning for i in rows], list(columns))
        found = []
        for reading, own in zip(readings, windows, strict=True):
            cover = list(reading.cover)
            of_own = shares[:, [columns[text] for _, text in own]]
            for row, share in _matched(of_own, [places for places, _ in own], [cover[i] < 1 for i in rows]):
                cover[rows[row]] = max(cover[rows[row]], share)
            found.append(reading._replace(cover=tuple(cover)))
        return found

    def _chains(self, asked: Sequence[_Asked], readings: Sequence[_Reading]) -> Iterator[_Chain]:
        """Chains of one passage first, then chains of two, ..."""
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


def _windows(words: Sequence[_Word], said: set[str]) -> list[tuple[range, str]]:
    """(places, text) of the passage's phrases that may express a word of the question in other words. A phrase has no
    name and no word of the question itself (`said`, stems). It is not a single function word, but may have two: "is
    from" can mean "makes"."""
    free = [word.surface.isalpha() and not word.is_name and word.stem not in said for word in words]
    found = []
    for first in range(len(words)):
        for last in range(first, min(first + _MAX_WINDOW, len(words))):
            if not free[last]:
                break
            text = " ".join(word.surface for word in words[first : last + 1])
            if text not in FUNCTION_WORDS:
                found.append((range(first, last + 1), text))
    return found


def _matched(shares: Shares, places: Sequence[range], missing: Sequence[bool]) -> Iterator[tuple[int, float]]:
    """(row, share) of matched pairs, the best first. A pair is a `missing` row and a window whose places are free."""
    open_rows = {row for row, is_missing in enumerate(missing) if is_missing}
    taken: set[int] = set()
    for pair in np.argsort(-shares, axis=None, kind="stable"):
        row, column = divmod(int(pair), len(places))
        share = float(shares[row, column])
        if share < _LEAST_ALIKE or not open_rows:
            return
        if row in open_rows and taken.isdisjoint(places[column]):
            open_rows.remove(row)
            taken.update(places[column])
            yield row, share


def _longer(chain: _Chain, asked: Sequence[_Asked], readings: Sequence[_Reading]) -> Iterator[_Chain]:
    known = chain.told | chain.new
    for i, reading in enumerate(readings):
        if i in chain.passages or chain.new.isdisjoint(reading.words):
            continue
        both = zip(asked, chain.cover, reading.cover, strict=True)
        cover = tuple(min(float(word.times), before + more) for word, before, more in both)
        if cover != chain.cover:
            yield _Chain((*chain.passages, i), cover, known, reading.new - known)
