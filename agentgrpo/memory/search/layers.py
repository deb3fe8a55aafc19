"""Search in two layers.

    kinds (name, description, first entries) --score--> the best top_kinds --score--> top_entries of each --> merged

Nothing of an index is kept from one set of documents to the next: it is built from what is there, so it follows every
edit. What is remembered are texts taken apart (see bm25 and cosine), which is what takes time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Protocol

from agentgrpo.errors import ConfigError
from agentgrpo.types import Passage

FIRST_ENTRIES = 10
"""Entries that speak for their kind."""
DIGITS = 9
"""Decimals of a score that count: float noise decides nothing."""
Scores = Callable[[str], Sequence[float]]
"""query -> a score for each text; 0 and less: nothing in common."""


class Scorer(Protocol):
    identity: str

    def over(self, texts: Sequence[str]) -> Scores: ...


class LayeredSearch:
    """Documents of one kind, such as raw chunks, are searched at once. Entries of all kinds are scored as one
    collection, so that scores of different kinds can be merged."""

    def __init__(
        self,
        scorer: Scorer,
        *,
        top_kinds: int = 3,
        top_entries: int = 5,
        descriptions: Mapping[str, str] | None = None,
    ) -> None:
        """top_entries: of each kind. descriptions: kind -> what it holds. Raises ConfigError."""
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
    """The upper one."""

    members: Sequence[Sequence[int]]
    """Of each kind, the positions of its entries."""
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
        """With their scores."""
        scores = self.entries(query)
        candidates = range(len(scores)) if self.layer is None else self.layer.candidates(query, scores)
        found = best(scores, candidates, top_k)
        return [dataclasses.replace(self.documents[p], score=round(scores[p], DIGITS)) for p in found]


def best(scores: Sequence[float], positions: Sequence[int], count: int) -> list[int]:
    """At most `count` of `positions` with a score above 0, best first, of equal ones the last."""
    ranked = sorted((-round(scores[p], DIGITS), -p) for p in positions)
    return [-minus for score, minus in ranked[:count] if score < 0]
