"""A report cut into claims, each with what it cites.

    Velmor was founded by Castin [R1Q1D1]. He was born in Roka [R2Q1D1] [R2Q1D2].
    claim 1: Velmor was founded by Castin.    cites R1Q1D1
    claim 2: He was born in Roka.             cites R2Q1D1, R2Q1D2

A claim is a sentence, or a line of a list. It cites what stands in it, right behind it, or before it at the beginning
of its line. Headings, questions and what ends in a colon are no claims, nor are single words beside sentences. Claims
of which most was said by claims before are repeats of these (`without_repeats`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentgrpo.core.types import Citation
from agentgrpo.judges.answers import words
from agentgrpo.retrieval.rerank import FUNCTION_WORDS

_LINE = re.compile(r"[^\n]+")
_BULLET = re.compile(r"\s*(?:(?:[-*+•·>|]|\d{1,3}[.)])\s+)*")
_END = re.compile(r"[.!?][\"'”’)\]*_]*(?=\s+[\"'“‘(\[*_]*[^\W_])|[。！？][”’」』）]*")
_SHORT = re.compile(
    r"(?:^|[\s(\"'“])(?:[A-Z]|[A-Za-z](?:\.[A-Za-z])+|Dr|Mr|Mrs|Ms|Prof|St|Jr|Sr|No|vs|cf|ca|approx|etc|al|Fig|Vol|Inc|Ltd|Co)"
    r"\.$"
)
"""Where a full stop ends an abbreviation or an initial, and mostly no sentence."""
_REACH = 24
"""Characters of the longest abbreviation."""
_NO_CLAIM = ("?", "？", "؟", ":", "：")
"""Ends of questions, and of what introduces something."""


SAYS_NOTHING = FUNCTION_WORDS | {
    *("he", "she", "it", "they", "him", "her", "them", "his", "hers", "its", "their", "theirs", "we", "us", "our"),
    *("name", "names", "named", "called"),
}
"""Words of a claim that no passage has to have."""


@dataclass(frozen=True, slots=True)
class Claim:
    text: str
    cited: tuple[Citation, ...] = ()


def claims_of(report: str, citations: Sequence[Citation]) -> list[Claim]:
    """The claims of an Episode.answer, in order, each once, with those of its citations that belong to it. Single words
    are claims only where nothing else is one."""
    found: dict[tuple[str, ...], Claim] = {}
    for begin, end in _sentences(report):
        text = report[begin:end].strip()
        said = tuple(words(text))
        if said and not text.startswith("#") and not text.rstrip("\"'”’)*_").endswith(_NO_CLAIM):
            found.setdefault(said, Claim(text, tuple(c for c in citations if _is_cited(c, begin, end))))
    sentences = [claim for said, claim in found.items() if len(said) > 1]
    return sentences or list(found.values())


def without_repeats(claims: Sequence[Claim]) -> list[Claim]:
    """Of claims that are supported, those that say something new: at least half of the words that a claim shares with
    what it cites are in no claim before it. Other words of it count for nothing, so a truth in forty wordings is one
    claim. A claim that shares no word stands for its passages."""
    new: list[Claim] = []
    told: set[str] = set()
    for claim in claims:
        passages = {word for citation in claim.cited for word in words(citation.text)}
        said = {*words(claim.text)} & passages - SAYS_NOTHING or {citation.doc_id for citation in claim.cited}
        if 2 * len(said - told) >= len(said):
            new.append(claim)
        told |= said
    return new


def _is_cited(citation: Citation, begin: int, end: int) -> bool:
    return any(begin <= place <= end for place in citation.places)


def _sentences(report: str) -> Iterator[tuple[int, int]]:
    """(begin, end) of each in `report`, bullets left out. No place belongs to two of them."""
    for line in _LINE.finditer(report):
        begin, end = line.start() + len(_BULLET.match(line[0])[0]), line.end()  # type: ignore[index]
        if begin > end:
            continue
        for match in _END.finditer(report, begin, end):
            if _SHORT.search(report, max(begin, match.start() - _REACH), match.start() + 1) is None:
                yield begin, match.end()
                begin = match.end() + 1 if match[0][0] in ".!?" else match.end()
        yield begin, end
