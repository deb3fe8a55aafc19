"""Rewards of two published systems, as terms: Search-R1 (arXiv 2503.09516) and ARTIST (arXiv 2505.01441)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentgrpo.core.types import Episode
from agentgrpo.rewards.base import is_success, success
from agentgrpo.rewards.terms import (
    CITATION_SUPPORT,
    CORRECTNESS,
    RETRIEVAL_QUALITY,
    Term,
    Weighted,
    has_answer,
    well_formed,
)


def _is_right(correctness: float) -> bool:
    return correctness >= 1.0


@dataclass(frozen=True, kw_only=True)
class SearchR1Structure(Term):
    """One of four values by (right, valid); 0 without an answer. Right: graded 1. Valid: all of `well_formed`."""

    correct_valid: float
    correct_invalid: float
    wrong_valid: float
    wrong_invalid: float
    dimension = CORRECTNESS
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        if not has_answer(episode):
            return 0.0
        valid = all(well_formed(episode))
        if _is_right(correctness):
            return self.correct_valid if valid else self.correct_invalid
        return self.wrong_valid if valid else self.wrong_invalid


class ArtistAnswer(Weighted):
    """w for an answer graded 1, else 0."""

    dimension = CORRECTNESS
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        return self.weight * _is_right(correctness)


_SAMPLED_BLOCKS = re.compile(
    r"<(think|search|searches|answer|tool_call)\b[^<>]*>.*?</\1>|^(Thought|Action|Final Answer):",
    re.DOTALL | re.MULTILINE,
)
_SHOWN_BLOCKS = re.compile(r"<(information|tool_response)\b[^<>]*>.*?</\1>", re.DOTALL)
_LETTERS = (
    dict.fromkeys(("think", "Thought"), "T")
    | dict.fromkeys(("search", "searches", "tool_call", "Action"), "S")
    | dict.fromkeys(("information", "tool_response"), "I")
    | dict.fromkeys(("answer", "Final Answer"), "A")
)
_OBSERVED = "Observation:"


def _blocks(episode: Episode) -> str:
    """The episode's tag pairs in order, a letter each: T(hink) S(earch, or any tool call) I(nformation) A(nswer). The
    policy's tags count only where it sampled them and information only where it was shown, so that neither can play the
    other's part. In ReAct text the lines Thought:, Action: and Final Answer: are the policy's tags, and what is shown
    after its Observation: is information."""
    letters: list[str] = []
    before = ""
    for segment in (s for b in episode.branches for s in b.segments if s.sampled or s.role == "tool"):
        blocks = _SAMPLED_BLOCKS if segment.sampled else _SHOWN_BLOCKS
        letters += [_LETTERS[m[1] or m[2]] if segment.sampled else "I" for m in blocks.finditer(segment.text)]
        if not segment.sampled and before.endswith(_OBSERVED):
            letters.append("I")
        before = segment.text if segment.sampled else ""
    return "".join(letters)


class ArtistFormat(Weighted):
    """w · (0.125 per kind of tag pair that occurs, of think, search, information, answer, + 0.5 for strict order).

    Strict order: opens with a thought, every search (or call; several in one turn are one) is followed by its
    information, and one answer ends it all. 0 without an answer, which the paper does not ask for: tags
    alone would pay.
    """

    dimension = CITATION_SUPPORT
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        if not has_answer(episode):
            return 0.0
        blocks = _blocks(episode)
        in_order = re.fullmatch(r"T(?:T|S+I+)*A", blocks) is not None
        return self.weight * (0.125 * len(set(blocks)) + 0.5 * in_order)


class ArtistTools(Weighted):
    """w · successful / all tool calls; 0 without a call, and without an answer, which the paper does not ask for: any
    search that succeeds would pay."""

    dimension = RETRIEVAL_QUALITY
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        calls = episode.tool_records if has_answer(episode) else ()
        return self.weight * sum(map(is_success, calls)) / max(len(calls), 1)

    def per_turn(self, episode: Episode) -> Sequence[float]:
        return success(self.weight if has_answer(episode) else 0.0, episode)
