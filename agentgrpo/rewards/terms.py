"""The terms of the search agent's reward. A weight is a signed number, the reward per unit; costs are below 0.

Terms read Episode.metrics by name. A metric that the agent does not count is a configuration error, never a 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Episode
from agentgrpo.core.untrusted import is_blank

CORRECTNESS = "correctness"
CITATION_SUPPORT = "citation_support"
RETRIEVAL_QUALITY = "retrieval_quality"
SEARCH_EFFICIENCY = "search_efficiency"
DIMENSIONS = (CORRECTNESS, CITATION_SUPPORT, RETRIEVAL_QUALITY, SEARCH_EFFICIENCY)


def read(episode: Episode, metric: str) -> float:
    """The episode's metric. Raises ConfigError when the agent does not count it."""
    try:
        return episode.metrics[metric]
    except KeyError:
        counted = ", ".join(sorted(episode.metrics)) or "nothing"
        raise ConfigError(
            f"a reward term reads the metric '{metric}', which this environment does not count (it counts {counted}); "
            "remove the term, or choose an environment that does, or a reward that fits this one: for "
            "environment=memory e.g. reward=memory, for environment=tools e.g. reward=react, tools or correctness"
        ) from None


def has_answer(episode: Episode) -> bool:
    """Whether the episode has an answer to grade; a blank answer does not count."""
    return episode.answer is not None and not is_blank(episode.answer)


def cited(episode: Episode) -> set[str]:
    """Ids of the passages that were shown to the policy and cited by it."""
    return {c.doc_id for c in episode.citations} & set(episode.retrieved_ids)


def well_formed(episode: Episode) -> tuple[bool, bool, bool]:
    """Three checks of form: every turn held an action; the policy opened its answer itself (the answer was not forced);
    no tag is left inside the answer."""
    return (
        read(episode, "format_error_turns") == 0,
        read(episode, "forced_final_answer") == 0,
        re.search(r"</?[a-z_]+\b[^<>]*>", episode.answer or "") is None,
    )


@dataclass(frozen=True, kw_only=True)
class Term:
    """The base of all terms: frozen signed weights and switches. Raises ConfigError for a weight that is not a finite
    number, and for a switch that is not true or false."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type in ("bool", bool):
                if not isinstance(value, bool):
                    raise ConfigError(
                        f"{type(self).__name__} {field.name}={value!r}: true or false is allowed; correct it"
                    )
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ConfigError(
                    f"{type(self).__name__} {field.name}={value!r}: a finite number is allowed; correct it"
                )


@dataclass(frozen=True, kw_only=True)
class Weighted(Term):
    weight: float


@dataclass(frozen=True, kw_only=True)
class Penalty(Weighted):
    """A weight of at most 0, so that a forgotten minus sign is an error instead of a reward."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_positive(self, "weight", self.weight)


def refuse_positive(term: Term, name: str, weight: float) -> None:
    if weight > 0:
        raise ConfigError(
            f"{type(term).__name__} {name}={weight}: a penalty or cost is 0 or less; "
            f"write {-weight} (to reward it, add a term of your own)"
        )


# --- correctness


class Correctness(Weighted):
    """w · the judge's grade."""

    dimension = CORRECTNESS
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * correctness


# --- citation support


class UnsupportedClaim(Penalty):
    """w, once, for an answer that cites nothing although a search brought results."""

    dimension = CITATION_SUPPORT
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        searched = read(episode, "rounds_used") > 0 and bool(episode.retrieved_ids)
        return self.weight * (has_answer(episode) and searched and not cited(episode))


class FetchUsefulness(Weighted):
    """w, once, if a fetched page is cited."""

    dimension = CITATION_SUPPORT
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * (read(episode, "useful_fetched_pages") > 0)


class FormatChecks(Weighted):
    """w · grade · share of four checks passed: the three of `well_formed`, and a valid citation if results were shown.
    A wrong answer earns nothing, whatever its form."""

    dimension = CITATION_SUPPORT
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        checks = (*well_formed(episode), bool(cited(episode)) or not episode.retrieved_ids)
        return self.weight * correctness * sum(checks) / len(checks)


# --- retrieval quality


class SearchQuality(Weighted):
    """w · (final_evidence_sufficient + search_quality_score) / 2; without a round w · grade · answer_allowed, because
    the answer is the only evidence. 0 without an answer, and if only the environment itself has searched."""

    dimension = RETRIEVAL_QUALITY
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        rounds, automatic = read(episode, "rounds_used"), read(episode, "automatic_searches")
        if rounds == 0:
            quality = correctness * read(episode, "answer_allowed")
        else:
            quality = (read(episode, "final_evidence_sufficient") + read(episode, "search_quality_score")) / 2
        return self.weight * quality * (has_answer(episode) and (rounds == 0 or rounds > automatic))


class SubquestionCoverage(Weighted):
    """w · subquestion_coverage_ratio; 0 without an answer, and if the policy has set no subquestion."""

    dimension = RETRIEVAL_QUALITY
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        ratio, active = read(episode, "subquestion_coverage_ratio"), read(episode, "active_subquestions")
        return self.weight * ratio * (has_answer(episode) and active > 0)


class EvidenceGain(Weighted):
    """w · evidence_gain_total; each turn gets the gain of its round. 0 without an answer, since evidence is only a
    means to answer."""

    dimension = RETRIEVAL_QUALITY
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * read(episode, "evidence_gain_total") * has_answer(episode)

    def per_turn(self, episode: Episode) -> Sequence[float]:
        if not has_answer(episode):
            return [0.0] * len(episode.turns)
        gains = episode.metrics_by_turn.get("evidence_gain_total", (0.0,) * len(episode.turns))
        return [self.weight * gain for gain in gains]


class EarlyStopBonus(Weighted):
    """w · early_stops; 0 without an answer."""

    dimension = RETRIEVAL_QUALITY
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * read(episode, "early_stops") * has_answer(episode)


class AnswerWhenEvidenceInsufficient(Penalty):
    """w · answer_when_evidence_insufficient."""

    dimension = RETRIEVAL_QUALITY
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * read(episode, "answer_when_evidence_insufficient")


class ForcedFinalAnswer(Penalty):
    """w · forced_final_answer."""

    dimension = RETRIEVAL_QUALITY
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * read(episode, "forced_final_answer")


class SearchBudgetExhausted(Penalty):
    """w · search_budget_exhausted_without_answer."""

    dimension = RETRIEVAL_QUALITY
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * read(episode, "search_budget_exhausted_without_answer")


# --- The price of length.


@dataclass(frozen=True, kw_only=True)
class Overlong(Penalty):
    """w · the share of `buffer_tokens`, the last of `max_tokens`, that the episode's sampled tokens have used; the full
    w beyond max_tokens. With w = -1 this is the soft overlong punishment of DAPO (arXiv 2503.14476, equation 13), whose
    max_tokens is 20480 and buffer_tokens 4096. A right answer is charged like a wrong one."""

    max_tokens: int
    buffer_tokens: int
    dimension = SEARCH_EFFICIENCY
    is_cost = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.buffer_tokens <= self.max_tokens:
            raise ConfigError(
                f"Overlong max_tokens={self.max_tokens}, buffer_tokens={self.buffer_tokens}: a buffer of 1 token or "
                "more, not larger than max_tokens, is allowed; correct them"
            )

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self._price(sum(b.num_sampled_tokens for b in episode.branches))

    def per_turn(self, episode: Episode) -> Sequence[float]:
        prices = [self._price(tokens) for tokens in accumulate((len(s.token_ids) for s in episode.turns), initial=0)]
        return [after - before for before, after in pairwise(prices)]

    def _price(self, sampled_tokens: int) -> float:
        over = sampled_tokens - (self.max_tokens - self.buffer_tokens)
        return self.weight * min(1.0, max(0, over) / self.buffer_tokens)
