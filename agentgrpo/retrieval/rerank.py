"""A reranker without a model: it scores a passage by the share of the query that the passage covers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.corpus import searchable_text

_WORD = re.compile(r"\w+")

FUNCTION_WORDS = frozenset(
    _WORD.findall(
        "a an and are as at be by did do does for from has have how in is it of on or that the these this those to was "
        "were what when where which who whom whose why with"
    )
)
"""English words without content. If a query has no other words, all its words count."""


class LexicalReranker:
    """Scores a passage by how much of the query it covers:

        score = sum over query words of weight * cover / sum of weights,  in [0, 1]

        weight = name_weight for a word written with a capital (a name), else 1
        cover  = 1 if the passage has the word, else 0                                  no expansion: names are exact
               = max(share of its expansion's words in the passage, 1/2 if it has the word itself)      an expansion

    The expansion of a word is what texts say instead of it; a passage that says it beats one that drops the word. With
    {"headquarters": ["main", "office", "near"]} and the query "headquarters Velmor",

        "The main office of Velmor is near Roka."          (1 * 3/3 + 2 * 1) / 3 = 1.0
        "Tours of the Velmor headquarters are popular."    (1 * 1/2 + 2 * 1) / 3 = 0.833333

    Words are compared in lower case, function words of the query are left out, equal scores keep their order."""

    def __init__(self, *, thesaurus: Mapping[str, Sequence[str]] | None = None, name_weight: float = 2.0) -> None:
        if not name_weight > 0:
            raise ConfigError(f"name_weight={name_weight}; more than 0 is allowed, 1 = names count like any word")
        self._expansions = {word.lower(): _expansion(word, words) for word, words in (thesaurus or {}).items()}
        self._name_weight = name_weight

    async def rerank(self, query: str, passages: Sequence[Passage], *, top_k: int) -> list[Passage]:
        weights = self._weights(query)
        scored = [dataclasses.replace(p, score=self._score(weights, p)) for p in passages]
        return sorted(scored, key=lambda p: -(p.score or 0.0))[:top_k]

    def _weights(self, query: str) -> dict[str, float]:
        """Lower-case query word -> weight, each word once."""
        written = _WORD.findall(query)
        asking = [w for w in written if w.lower() not in FUNCTION_WORDS] or written
        weights: dict[str, float] = {}
        for word in asking:
            weight = self._name_weight if word[0].isupper() else 1.0
            weights[word.lower()] = max(weight, weights.get(word.lower(), 0.0))
        return weights

    def _score(self, weights: Mapping[str, float], passage: Passage) -> float:
        words = set(_WORD.findall(searchable_text(passage).lower()))
        covered = sum(weight * self._cover(word, words) for word, weight in weights.items())
        return round(covered / sum(weights.values()), 6) if weights else 0.0

    def _cover(self, word: str, words: set[str]) -> float:
        expansion = self._expansions.get(word)
        if expansion is None:
            return float(word in words)
        return max(len(expansion & words) / len(expansion), 0.5 * (word in words))


def _expansion(word: str, words: Sequence[str]) -> frozenset[str]:
    """The lower-case words of an entry; a phrase counts as its words."""
    if isinstance(words, str) or not all(isinstance(w, str) for w in words):
        raise ConfigError(f"thesaurus entry {word!r}: {words!r}; allowed is a list of words; put it in [ ]")
    expansion = frozenset(w for phrase in words for w in _WORD.findall(phrase.lower()))
    if not expansion:
        raise ConfigError(f"thesaurus entry {word!r}: no words; give at least one or remove the entry")
    return expansion
