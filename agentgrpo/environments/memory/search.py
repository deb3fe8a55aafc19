"""Okapi BM25 (Robertson & Zaragoza 2009) over texts that change often.

    score(query, text) = sum over the query's distinct words of idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * n / mean))

with idf = ln(1 + (N - df + 0.5) / (df + 0.5)), n the words of the text and mean their mean over the N texts. Tantivy's
BM25 (retrieval.bm25) rounds lengths, has fixed k1 and b, and its index costs more than the search.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Protocol

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage
from agentgrpo.environments.memory.schema import CORE, SCHEMAS
from agentgrpo.retrieval.embedder import Embedder, HashingEmbedder, Vectors, identity_of

# --- Search in two layers.
#
#     kinds (name, description, first entries) --score--> the best top_kinds --score--> top_entries of each --> merged
#
# An index is built anew for each set of documents, so it follows every edit. Only parsed texts are cached (see Bm25 and
# Cosine), because parsing takes most of the time.

FIRST_ENTRIES = 10
"""Number of entries that represent their kind."""
DIGITS = 9
"""Scores are rounded to these decimals, so that float noise decides nothing."""
Scores = Callable[[str], Sequence[float]]
"""query -> a score for each text; 0 or less = nothing in common."""


class Scorer(Protocol):
    identity: str

    def over(self, texts: Sequence[str]) -> Scores: ...


class LayeredSearch:
    """Searches kinds first, then their entries; documents of one kind, such as raw chunks, are searched in one layer.
    Entries of all kinds are scored as one collection, so that scores of different kinds can be merged."""

    def __init__(
        self,
        scorer: Scorer,
        *,
        top_kinds: int = 3,
        top_entries: int = 5,
        descriptions: Mapping[str, str] | None = None,
    ) -> None:
        """top_kinds: number of kinds to search. top_entries: candidates from each kind. descriptions: kind -> its
        description. Raises ConfigError."""
        for name, value in {"top_kinds": top_kinds, "top_entries": top_entries}.items():
            if value < 1:
                raise ConfigError(f"search.{name}={value}; 1 or more is allowed")
        self._scorer = scorer
        self._top_kinds, self._top_entries = top_kinds, top_entries
        self._descriptions = dict(descriptions or {})
        told = blake2b(repr(sorted(self._descriptions.items())).encode(), digest_size=8).hexdigest()
        self.identity = f"{scorer.identity} top_kinds={top_kinds} top_entries={top_entries} descriptions={told}"

    def over(self, documents: Sequence[Passage]) -> LayeredIndex:
        kinds: dict[str, list[int]] = {}
        for position, document in enumerate(documents):
            kinds.setdefault(document.title, []).append(position)
        entries = self._scorer.over([d.text for d in documents])
        if len(kinds) < 2:
            return LayeredIndex(documents, entries)
        texts = [self._text(kind, [documents[p].text for p in found]) for kind, found in kinds.items()]
        layer = Layer(tuple(kinds.values()), self._scorer.over(texts), self._top_kinds, self._top_entries)
        return LayeredIndex(documents, entries, layer)

    def _text(self, kind: str, entries: Sequence[str]) -> str:
        return "\n".join([kind, self._descriptions.get(kind, ""), *entries[:FIRST_ENTRIES]])


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """The upper layer, which chooses kinds."""

    members: Sequence[Sequence[int]]
    """The positions of each kind's entries."""
    scores: Scores
    top_kinds: int
    top_entries: int

    def candidates(self, query: str, entries: Sequence[float]) -> list[int]:
        kinds = best(self.scores(query), range(len(self.members)), self.top_kinds)
        return [p for kind in kinds for p in best(entries, self.members[kind], self.top_entries)]


@dataclasses.dataclass(frozen=True, slots=True)
class LayeredIndex:
    documents: Sequence[Passage]
    entries: Scores
    layer: Layer | None = None

    def search(self, query: str, *, top_k: int) -> list[Passage]:
        """Return the best documents with their scores."""
        scores = self.entries(query)
        candidates = range(len(scores)) if self.layer is None else self.layer.candidates(query, scores)
        found = best(scores, candidates, top_k)
        return [dataclasses.replace(self.documents[p], score=round(scores[p], DIGITS)) for p in found]


def best(scores: Sequence[float], positions: Sequence[int], count: int) -> list[int]:
    """Return at most `count` of `positions` with a score above 0, best first, the later first among equals."""
    ranked = sorted((-round(scores[p], DIGITS), -p) for p in positions)
    return [-minus for score, minus in ranked[:count] if score < 0]


_WORD = re.compile(r"[^\W_]+")
_REMEMBERED_TEXTS = 2**16


class Bm25:
    def __init__(self, *, k1: float = 1.5, b: float = 0.75) -> None:
        """Raises ConfigError."""
        if not (math.isfinite(k1) and k1 >= 0 and 0 <= b <= 1):
            raise ConfigError(f"search.k1={k1}, b={b}; k1 of 0 or more and b from 0 to 1 are allowed")
        self.identity = f"bm25 k1={k1} b={b}"
        self._k1, self._b = k1, b

    def over(self, texts: Sequence[str]) -> Scores:
        counts = [_counts(text) for text in texts]
        lengths = [sum(of.values()) for of in counts]
        mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
        norms = [self._k1 * (1 - self._b + self._b * n / mean) for n in lengths]
        postings: dict[str, list[tuple[int, int]]] = {}
        for position, of in enumerate(counts):
            for word, tf in of.items():
                postings.setdefault(word, []).append((position, tf))

        def scores(query: str) -> list[float]:
            found = [0.0] * len(texts)
            # Sorted, because float addition is not associative: the order of the query's words decides nothing.
            for word in sorted(_counts(query)):
                held = postings.get(word, ())
                idf = math.log1p((len(texts) - len(held) + 0.5) / (len(held) + 0.5))
                for position, tf in held:
                    found[position] += idf * tf * (self._k1 + 1) / (tf + norms[position])
            return found

        return scores


@lru_cache(maxsize=_REMEMBERED_TEXTS)
def _counts(text: str) -> Mapping[str, int]:
    return Counter(_WORD.findall(text.lower()))


# --- Similarity of embeddings, alone or together with BM25.

FULL_SCORE = 10.0
"""The BM25 score that counts as a full match of words in Hybrid."""
_REMEMBERED_VECTORS = 2**14


class Cosine:
    """Cosine similarity, in [-1, 1]: rows of an embedder have length 1, or 0 for a text without content."""

    def __init__(self, embedder: Embedder) -> None:
        self.identity = f"cosine {identity_of(embedder)}"
        self._embedder = embedder
        self._vector = lru_cache(maxsize=_REMEMBERED_VECTORS)(self._embed)

    def over(self, texts: Sequence[str]) -> Scores:
        vectors = [self._vector(text) for text in texts]

        def scores(query: str) -> list[float]:
            asked = self._vector(query)
            # Plain sums, no BLAS: its result may depend on the number of threads.
            return [float((asked * vector).sum()) for vector in vectors]

        return scores

    def _embed(self, text: str) -> Vectors:
        vector: Vectors = self._embedder.embed([text])[0]
        return vector


class Hybrid:
    """(1 - weight) * min(bm25 / 10, 1) + weight * cosine."""

    def __init__(self, words: Bm25, meaning: Cosine, *, weight: float = 0.5) -> None:
        """Raises ConfigError."""
        if not 0 <= weight <= 1:
            raise ConfigError(f"search.weight={weight}; the cosine's share, from 0 to 1, is allowed")
        self.identity = f"hybrid {weight} of {meaning.identity}, {words.identity}"
        self._words, self._meaning, self._weight = words, meaning, weight

    def over(self, texts: Sequence[str]) -> Scores:
        words, meaning = self._words.over(texts), self._meaning.over(texts)

        def scores(query: str) -> list[float]:
            w = self._weight
            both = zip(words(query), meaning(query), strict=True)
            return [(1 - w) * min(by_words / FULL_SCORE, 1.0) + w * cosine for by_words, cosine in both]

        return scores


# --- `search: {name: ...}`: the searches that a configuration can name.

DESCRIPTIONS = {kind: meaning for s in SCHEMAS.values() for kind, meaning in s.kinds.items()} | {
    CORE: " ".join(s.core for s in SCHEMAS.values())
}
"""kind -> its description, over all schemas."""


def bm25(
    *,
    k1: float = 1.5,
    b: float = 0.75,
    top_kinds: int = 3,
    top_entries: int = 5,
) -> LayeredSearch:
    """Search by words. Bm25 and LayeredSearch explain the arguments of all three searches."""
    return LayeredSearch(Bm25(k1=k1, b=b), top_kinds=top_kinds, top_entries=top_entries, descriptions=DESCRIPTIONS)


def hybrid(
    *,
    weight: float = 0.5,
    k1: float = 1.5,
    b: float = 0.75,
    top_kinds: int = 3,
    top_entries: int = 5,
    embedder: Embedder | None = None,
) -> LayeredSearch:
    """Search by words and by meaning. weight: the cosine's share. embedder: None = the hashing one."""
    scorer = Hybrid(Bm25(k1=k1, b=b), Cosine(embedder or HashingEmbedder()), weight=weight)
    return LayeredSearch(scorer, top_kinds=top_kinds, top_entries=top_entries, descriptions=DESCRIPTIONS)


def embedding(
    *,
    top_kinds: int = 3,
    top_entries: int = 5,
    embedder: Embedder | None = None,
) -> LayeredSearch:
    """Search by meaning. embedder: None = the hashing one, whose scores of unlike texts vary at random around 0."""
    scorer = Cosine(embedder or HashingEmbedder())
    return LayeredSearch(scorer, top_kinds=top_kinds, top_entries=top_entries, descriptions=DESCRIPTIONS)
