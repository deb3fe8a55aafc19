"""Splits a report into claims with their citations.

    Velmor was founded by Castin [R1Q1D1]. He was born in Roka [R2Q1D1] [R2Q1D2].
    claim 1: Velmor was founded by Castin.    cites R1Q1D1
    claim 2: He was born in Roka.             cites R2Q1D1, R2Q1D2

A claim is a sentence or a list item. Its citations are inside it, right behind it, or before it at the beginning of
its line. Headings, questions and sentences that end in a colon are not claims. A single word is not a claim if the
report has sentences. A claim repeats earlier claims if they have said most of it (`without_repeats`).
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
"""A full stop after an abbreviation or an initial, which usually does not end a sentence."""
_REACH = 24
"""Characters of the longest abbreviation."""
_NO_CLAIM = ("?", "？", "؟", ":", "：")
"""Last characters of questions and of sentences that introduce something."""


SAYS_NOTHING = FUNCTION_WORDS | {
    *("he", "she", "it", "they", "him", "her", "them", "his", "hers", "its", "their", "theirs", "we", "us", "our"),
    *("name", "names", "named", "called"),
}
"""Words of a claim that its passages need not contain."""


@dataclass(frozen=True, slots=True)
class Claim:
    text: str
    cited: tuple[Citation, ...] = ()


def claims_of(report: str, citations: Sequence[Citation]) -> list[Claim]:
    """The distinct claims of an Episode.answer, in order, each with its own citations. A single word is a claim only if
    no claim has more words."""
    found: dict[tuple[str, ...], Claim] = {}
    for begin, end in _sentences(report):
        text = report[begin:end].strip()
        said = tuple(words(text))
        if said and not text.startswith("#") and not text.rstrip("\"'”’)*_").endswith(_NO_CLAIM):
            found.setdefault(said, Claim(text, tuple(c for c in citations if _is_cited(c, begin, end))))
    sentences = [claim for said, claim in found.items() if len(said) > 1]
    return sentences or list(found.values())


def without_repeats(claims: Sequence[Claim]) -> list[Claim]:
    """Drop the supported claims that repeat earlier ones. A claim is new if at least half of the words that it shares
    with its cited passages are in no earlier claim. Its other words do not count, so a fact in forty wordings is one
    claim. A claim that shares no word with its passages is compared by their ids."""
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
    """(begin, end) of each sentence in `report`, without bullets. Sentences do not overlap."""
    for line in _LINE.finditer(report):
        begin, end = line.start() + len(_BULLET.match(line[0])[0]), line.end()  # type: ignore[index]
        if begin > end:
            continue
        for match in _END.finditer(report, begin, end):
            if _SHORT.search(report, max(begin, match.start() - _REACH), match.start() + 1) is None:
                yield begin, match.end()
                begin = match.end() + 1 if match[0][0] in ".!?" else match.end()
        yield begin, end
