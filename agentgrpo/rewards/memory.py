"""The terms of a memory agent's reward: r1 + r2 + beta r3 + gamma r4 of Mem-alpha (arXiv 2509.25911), and its form.

r1 is the term `correctness`. The actions in one branch, such as the calls for the chunk read there, are rewarded in
that branch. The joint results, r1 and r3, count in full for each branch.

Writing nothing must pay least, or an early policy learns to do so. A memory with only invalid entries is worthless, so
it counts as empty: in such an episode every term pays the same as for an empty memory. An explicit skip is paid only if
it is known that nothing is wanted, and a call only if it was not judged invalid.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Episode
from agentgrpo.rewards.terms import (
    CITATION_SUPPORT,
    RETRIEVAL_QUALITY,
    SEARCH_EFFICIENCY,
    Weighted,
    read,
    refuse_positive,
)


def of_branches(episode: Episode, metric: str) -> list[float]:
    """The amount that each branch added to the metric. Raises ConfigError if the agent does not count it by turn."""
    read(episode, metric)
    turns = [sum(s.sampled for s in branch.segments) for branch in episode.branches]
    counted = episode.metrics_by_turn.get(metric, ())
    if len(counted) != sum(turns):
        raise ConfigError(
            f"a reward term reads the metric '{metric}' of each of {sum(turns)} turns, and this environment counts it "
            f"for {len(counted)}; remove the term, or choose an environment that counts it turn by turn, such as "
            "environment=memory"
        )
    values = iter(counted)
    return [math.fsum(next(values) for _ in range(n)) for n in turns]


def counts_as_empty(episode: Episode) -> bool:
    return read(episode, "empty_memory") > 0


def rightly_skipped(episode: Episode) -> list[bool]:
    """Whether the only call of each branch is an explicit skip and nothing is wanted there. If the wanted entries are
    unknown, no skip is right."""
    names = ("calls", "skips", "wanted", "knows_wanted")
    rows = zip(*(of_branches(episode, name) for name in names), strict=True)
    return [made == skipped == 1 and known > 0 and not wanted for made, skipped, wanted, known in rows]


def right_calls(episode: Episode) -> list[tuple[float, float]]:
    """(right, counted) calls of each branch. A change is right if it was judged valid. A change that was not judged is
    not counted; a language model, for instance, judges no deletes. If nothing was judged at all, each change is right.
    """
    calls, executed = of_branches(episode, "calls"), of_branches(episode, "executed")
    is_judged = read(episode, "judged") > 0
    judged, valid = (of_branches(episode, name) if is_judged else executed for name in ("judged", "valid"))
    rows = zip(calls, executed, judged, valid, strict=True)
    return [(right, made - (done - seen)) for made, done, seen, right in rows]


@dataclass(frozen=True, kw_only=True)
class BranchWeighted(Weighted, ABC):
    """A term whose value is the mean over the branches."""

    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        values = self.per_branch(episode)
        return math.fsum(values) / max(1, len(values))

    def per_branch(self, episode: Episode) -> Sequence[float]:
        if counts_as_empty(episode):
            return [self._of_nothing()] * len(episode.branches)
        return self._earned(episode)

    def _of_nothing(self) -> float:
        """The value of each branch, in an episode whose memory counts as empty."""
        return 0.0

    @abstractmethod
    def _earned(self, episode: Episode) -> Sequence[float]:
        """The value of each branch, in any other episode."""


@dataclass(frozen=True, kw_only=True)
class CallSuccess(BranchWeighted):
    """r2: w · right / counted calls of a chunk (`right_calls`); 0 without a call. An explicit skip of a chunk from
    which nothing is wanted gets w with `skip_counts`; any other skip gets 0."""

    skip_counts: bool
    dimension = RETRIEVAL_QUALITY

    def _earned(self, episode: Episode) -> Sequence[float]:
        rows = zip(right_calls(episode), rightly_skipped(episode), strict=True)
        return [
            self.weight * (self.skip_counts if skip else right / max(1.0, counted)) for (right, counted), skip in rows
        ]


@dataclass(frozen=True, kw_only=True)
class Compression(Weighted):
    """r3: w · (1 - memory tokens / chunk tokens), below 0 if the memory is longer than the chunks. 0 for a memory that
    counts as empty, because nothing was compressed. `gated`: times the correctness."""

    gated: bool
    dimension = SEARCH_EFFICIENCY
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        share = correctness if self.gated else 1.0
        return self.weight * read(episode, "compression") * share * (not counts_as_empty(episode))


@dataclass(frozen=True, kw_only=True)
class Validity(BranchWeighted):
    """r4: w · valid / judged changes of a chunk; 0 if no change was judged.

    `recall`: w · valid / max(judged, wanted), if the number of wanted entries is known: missing entries count too. A
    chunk from which nothing is wanted then earns w by an explicit skip.
    """

    recall: bool
    dimension = RETRIEVAL_QUALITY

    def _earned(self, episode: Episode) -> Sequence[float]:
        valid, needed = of_branches(episode, "valid"), of_branches(episode, "judged")
        rightly = [False] * len(valid)
        if self.recall:
            needed = list(map(max, needed, of_branches(episode, "wanted")))
            rightly = rightly_skipped(episode)
        rows = zip(valid, needed, rightly, strict=True)
        return [self.weight * (right / needs if needs else float(skip)) for right, needs, skip in rows]


@dataclass(frozen=True, kw_only=True)
class Evidence(BranchWeighted):
    """w · (valid - invalid) / judged changes of a chunk, clipped to [`low`, `high`]; 0 if no change was judged, but
    `low` if the memory counts as empty. This is PersonaMem's term for evidence; an entry is valid here if its chunk
    supports it."""

    low: float
    high: float
    dimension = RETRIEVAL_QUALITY

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low <= 0 <= self.high:
            raise ConfigError(f"Evidence low={self.low}, high={self.high}: low <= 0 <= high is allowed; correct them")

    def _of_nothing(self) -> float:
        return self.low

    def _earned(self, episode: Episode) -> Sequence[float]:
        valid, judged = of_branches(episode, "valid"), of_branches(episode, "judged")
        balance = [(2 * right - of) / of if of else 0.0 for right, of in zip(valid, judged, strict=True)]
        return [min(self.high, max(self.low, self.weight * share)) for share in balance]


@dataclass(frozen=True, kw_only=True)
class MemoryFormat(BranchWeighted):
    """w for each chunk whose turn holds a right call (`right_calls`, or a right skip) and no other text, with all calls
    well formed and within the limit."""

    dimension = CITATION_SUPPORT

    def _earned(self, episode: Episode) -> Sequence[float]:
        faults = zip(*(of_branches(episode, name) for name in ("malformed", "stray", "over_limit")), strict=True)
        rows = zip(right_calls(episode), rightly_skipped(episode), faults, strict=True)
        return [self.weight * ((right > 0 or skip) and not any(of)) for (right, _), skip, of in rows]


@dataclass(frozen=True, kw_only=True)
class StrayText(BranchWeighted):
    """w, which is 0 or less, for each chunk whose turn holds text outside of calls, and for every chunk of an episode
    whose memory counts as empty."""

    dimension = CITATION_SUPPORT

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_positive(self, "weight", self.weight)

    def _of_nothing(self) -> float:
        return self.weight

    def _earned(self, episode: Episode) -> Sequence[float]:
        return [self.weight * (stray > 0) for stray in of_branches(episode, "stray")]
