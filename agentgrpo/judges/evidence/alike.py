"""How similar in meaning words are, by an embedder: cosines, converted to one scale for all embedders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from threading import RLock

import numpy as np

from agentgrpo.core.errors import ConfigError
from agentgrpo.judges.evidence.chains import Shares
from agentgrpo.retrieval.embedder import Embedder, Vectors, query_vectors

UNLIKE = (
    *("river", "tax", "sing", "winter", "doctor", "paint", "engine", "sugar", "justice", "climb"),
    *("mirror", "soldier", "cotton", "laugh", "planet", "kitchen", "debt", "whisper", "bridge", "cheese"),
    *("prayer", "valley", "ticket", "hammer", "storm", "teacher", "silver", "dance", "pocket", "forest"),
    *("crime", "button", "ocean", "answer", "leather", "rapid", "music", "shadow", "border", "candle"),
)
"""English words that have hardly anything to do with each other."""
MIDPOINT, SLOPE = 1.75, 2.0
"""The curve's parameters, in standard deviations of unlike words: 1 pair in 20 of them reaches 0.5 by chance."""
_CACHED = 2**14
_DIGITS = 5
"""Decimals to which a share is rounded, so that floating-point noise decides nothing."""


class Alikeness:
    """The similarity of two words in [0, 1], 1 for the same word:

        1 / (1 + exp(-slope * (cosine - midpoint)))

    Cosines of different embedders have different scales: those of unlike words are near 0.28 for MiniLM and near 0 for
    hashed embeddings. So midpoint = mean + 1.75 deviations and slope = 2 / deviation of the cosines of all pairs of
    UNLIKE. No text of the task and no gold answer plays a part."""

    def __init__(self, embedder: Embedder, *, midpoint: float | None = None, slope: float | None = None) -> None:
        """midpoint: the cosine with the similarity 0.5. slope: 4 times the slope of the curve there. null = computed
        from UNLIKE. Raises ConfigError."""
        if midpoint is not None and not -1 < midpoint < 1:
            raise ConfigError(f"environment.evidence.midpoint={midpoint}; a cosine between -1 and 1, or null")
        if slope is not None and not (math.isfinite(slope) and slope > 0):
            raise ConfigError(f"environment.evidence.slope={slope}; above 0 is allowed, and null")
        self._embedder, self._midpoint, self._slope = embedder, midpoint, slope
        self._vectors: dict[str, Vectors] = {}
        self._lock = RLock()

    def __call__(self, words: Sequence[str], phrases: Sequence[str]) -> Shares:
        """The similarities, [words, phrases]. Raises the embedder's errors, and ConfigError if the embedder gives all
        unlike words the same cosine."""
        with self._lock:
            midpoint, slope = self.curve
            cosines = self._cosines(words, phrases)
        shares: Shares = 1 / (1 + np.exp(-slope * (cosines - midpoint)))
        return shares.round(_DIGITS)

    @cached_property
    def curve(self) -> tuple[float, float]:
        """(midpoint, slope)."""
        if self._midpoint is not None and self._slope is not None:
            return self._midpoint, self._slope
        cosines = self._cosines(UNLIKE, UNLIKE)[np.triu_indices(len(UNLIKE), 1)]
        mean, deviation = float(cosines.mean()), float(cosines.std())
        if deviation < 1e-6:
            raise ConfigError(
                "environment.evidence.embedder tells no words apart: all cosines of unlike words are "
                f"{mean:.3f}; give another model"
            )
        midpoint = mean + MIDPOINT * deviation if self._midpoint is None else self._midpoint
        return midpoint, SLOPE / deviation if self._slope is None else self._slope

    def _cosines(self, rows: Sequence[str], columns: Sequence[str]) -> Shares:
        known = self._vectors
        if missing := [text for text in dict.fromkeys([*rows, *columns]) if text not in known]:
            if len(known) + len(missing) > _CACHED:
                known.clear()
                missing = list(dict.fromkeys([*rows, *columns]))
            # Both sides are embedded as queries, whose vectors do not depend on the other texts of the batch.
            vectors = query_vectors(self._embedder, missing)
            lengths = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
            known.update(zip(missing, vectors / np.where(lengths > 0, lengths, 1), strict=True))
        left, right = (np.stack([known[text] for text in texts]) for texts in (rows, columns))
        # Plain sums, no BLAS: its result may depend on the number of threads.
        return np.stack([(row * right).sum(axis=1, dtype=np.float64) for row in left])
