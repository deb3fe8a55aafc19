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
    """A value for each case of (right, valid); 0 without an answer. Right: graded 1. Valid: all of `well_formed`."""

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


_SAMPLED_BLOCKS = re.compile(r"<(think|search|searches|answer)\b[^<>]*>.*?</\1>", re.DOTALL)
_SHOWN_BLOCKS = re.compile(r"<information\b[^<>]*>.*?</information>", re.DOTALL)
_LETTERS = {"think": "T", "search": "S", "searches": "S", "answer": "A"}


def _blocks(episode: Episode) -> str:
    """The blocks of the episode in order, a letter each: T(hink) S(earch, or any tool call) I(nformation) A(nswer), as
    read by its renderer (Segment.acts). In plain-text turns a block is a tag pair. The policy's tags count only in
    sampled text, and information only in shown text, so that neither can forge the other."""
    letters: list[str] = []
    for segment in (s for b in episode.branches for s in b.segments if s.sampled or s.role == "tool"):
        if segment.acts:
            letters.append(segment.acts)
        elif segment.sampled:
            letters += [_LETTERS[m[1]] for m in _SAMPLED_BLOCKS.finditer(segment.text)]
        else:
            letters += ["I" for _ in _SHOWN_BLOCKS.finditer(segment.text)]
    return "".join(letters)


class ArtistFormat(Weighted):
    """w · (0.125 for each kind of block that occurs + 0.5 for strict order). The kinds are thought, search or call,
    information and answer; in plain text each block is a tag pair.

    Strict order: a thought comes first, information follows every search (or call; several in one turn count as one),
    and one answer comes last. 0 without an answer, unlike in the paper, because tags alone would pay.
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
    """w · successful / all tool calls; 0 without a call. 0 also without an answer, unlike in the paper, because any
    successful search would pay."""

    dimension = RETRIEVAL_QUALITY
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        calls = episode.tool_records if has_answer(episode) else ()
        return self.weight * sum(map(is_success, calls)) / max(len(calls), 1)

    def per_turn(self, episode: Episode) -> Sequence[float]:
        return success(self.weight if has_answer(episode) else 0.0, episode)
