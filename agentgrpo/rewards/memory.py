"""The terms of a memory agent's reward: r1 + r2 + beta r3 + gamma r4 of Mem-alpha (arXiv 2509.25911), and its form.

r1 is the term `correctness`. What an agent did in one branch, such as the chunk that it read there, it is rewarded for
in that branch; what came of all of it, r1 and r3, counts in full for each.

Writing nothing must pay worst, or it is what a young policy learns: an explicit skip is right now and then, so it
counts, but not where the whole memory is empty at the end; and what is charged for a bad turn is charged there too, so
that silence is no way around it.
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
    """What each branch added to the metric. Raises ConfigError where the agent does not count it turn by turn."""
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


def wrote_nothing(episode: Episode) -> bool:
    return read(episode, "empty_memory") > 0


@dataclass(frozen=True, kw_only=True)
class BranchWeighted(Weighted, ABC):
    """A term whose value is the mean of its branches'."""

    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        values = self.per_branch(episode)
        return math.fsum(values) / max(1, len(values))

    @abstractmethod
    def per_branch(self, episode: Episode) -> Sequence[float]: ...

    def _skipped(self, episode: Episode) -> list[bool]:
        """Of each branch, whether it was passed over by one explicit skip and nothing else. Of an episode that wrote
        nothing at all, none was."""
        calls, skips = of_branches(episode, "calls"), of_branches(episode, "skips")
        nothing = wrote_nothing(episode)
        return [not nothing and made == skipped == 1 for made, skipped in zip(calls, skips, strict=True)]


@dataclass(frozen=True, kw_only=True)
class CallSuccess(BranchWeighted):
    """r2: w · executed / all calls of a chunk; without a call 0, and for an explicit skip w where `skip_counts`."""

    skip_counts: bool
    dimension = RETRIEVAL_QUALITY

    def per_branch(self, episode: Episode) -> Sequence[float]:
        calls, executed = of_branches(episode, "calls"), of_branches(episode, "executed")
        shares = [done / max(1.0, made) for done, made in zip(executed, calls, strict=True)]
        skipped = self._skipped(episode)
        return [
            self.weight * (self.skip_counts if skip else share) for skip, share in zip(skipped, shares, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Compression(Weighted):
    """r3: w · (1 - memory tokens / chunk tokens), below 0 where the memory is longer than what was read. `gated`: times
    the correctness, so that an empty memory earns nothing."""

    gated: bool
    dimension = SEARCH_EFFICIENCY
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * read(episode, "compression") * (correctness if self.gated else 1.0)


@dataclass(frozen=True, kw_only=True)
class Validity(BranchWeighted):
    """r4: w · valid / judged changes of a chunk; 0 where none was judged.

    `recall`: w · valid / max(judged, wanted), where it is known how many were wanted: what was not written counts too.
    Then a chunk that asks for nothing earns w when it is passed over by an explicit skip.
    """

    recall: bool
    dimension = RETRIEVAL_QUALITY

    def per_branch(self, episode: Episode) -> Sequence[float]:
        valid, needed = of_branches(episode, "valid"), of_branches(episode, "judged")
        if self.recall:
            needed = list(map(max, needed, of_branches(episode, "wanted")))
            known, skipped = of_branches(episode, "knows_wanted"), self._skipped(episode)
            rightly = [skip and knows > 0 for skip, knows in zip(skipped, known, strict=True)]
        else:
            rightly = [False] * len(valid)
        rows = zip(valid, needed, rightly, strict=True)
        return [self.weight * (right / needs if needs else float(skip)) for right, needs, skip in rows]


@dataclass(frozen=True, kw_only=True)
class Evidence(BranchWeighted):
    """w · (valid - invalid) / judged changes of a chunk, not below `low` and not above `high`; 0 where none was judged,
    but `low` in an episode that wrote nothing. PersonaMem's term for evidence; what is judged here is whether an entry
    is borne out by its chunk."""

    low: float
    high: float
    dimension = RETRIEVAL_QUALITY

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low <= 0 <= self.high:
            raise ConfigError(f"Evidence low={self.low}, high={self.high}: low <= 0 <= high is allowed; correct them")

    def per_branch(self, episode: Episode) -> Sequence[float]:
        valid, judged = of_branches(episode, "valid"), of_branches(episode, "judged")
        if wrote_nothing(episode):
            return [self.low] * len(judged)
        balance = [(2 * right - of) / of if of else 0.0 for right, of in zip(valid, judged, strict=True)]
        return [min(self.high, max(self.low, self.weight * share)) for share in balance]


@dataclass(frozen=True, kw_only=True)
class MemoryFormat(BranchWeighted):
    """w for each chunk whose turn holds calls, all well formed and within the limit, and no other text. 0 in an episode
    that wrote nothing."""

    dimension = CITATION_SUPPORT

    def per_branch(self, episode: Episode) -> Sequence[float]:
        faults = zip(*(of_branches(episode, name) for name in ("malformed", "stray", "over_limit")), strict=True)
        calls, wrote = of_branches(episode, "calls"), not wrote_nothing(episode)
        return [self.weight * (wrote and made > 0 and not any(of)) for made, of in zip(calls, faults, strict=True)]


@dataclass(frozen=True, kw_only=True)
class StrayText(BranchWeighted):
    """w, which is 0 or less, for each chunk whose turn holds text outside of calls, and for every chunk of an episode
    that wrote nothing."""

    dimension = CITATION_SUPPORT

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_positive(self, "weight", self.weight)

    def per_branch(self, episode: Episode) -> Sequence[float]:
        nothing = wrote_nothing(episode)
        return [self.weight * (stray > 0 or nothing) for stray in of_branches(episode, "stray")]
