"""A reader that is a rule: it fills the blank of a question with the word that stands there in the best entry.

question                    entry                                    answer
Velmor lives in ___         Velmor lives in Castin before Ardun      Castin
Velmor lives before ___     Velmor lives in Castin before Ardun      Ardun
Velmor lives in ___         Velmor laughed a lot                     unknown
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentgrpo.dialogue import Question
from agentgrpo.memory.base import Index, Search
from agentgrpo.memory.reader.sentences import in_sentences, words_of
from agentgrpo.memory.search.searches import bm25
from agentgrpo.types import Passage

UNKNOWN = "unknown"
"""What documents do not say; a right answer where they should not."""
BEFORE = "before"
"""The cue of a question about what held earlier."""
RUMOUR = "perhaps"
_BLANK = re.compile(r"_{2,}")


class ClozeReader:
    """Of the words before the blank the best entry is found, and among equally good ones the newest. It answers if it
    holds all of them: with the word after the last one, the cue. A question without a blank is answered with the text
    of its best entry. Raw chunks are read sentence by sentence.

    recency: no search, and what is newest is true: the newest sentence that holds the words answers, rumours
    ("Perhaps ...") never do, and what held before is what the sentence before that one says. This is the reader that
    baselines on raw text get: it knows how such text changes its mind, which a reader of notes need not.
    """

    def __init__(self, *, search: Search | None = None, recency: bool = False) -> None:
        """search: None = bm25."""
        self._search = search if search is not None else bm25()
        self._recency = recency
        self.identity = f"cloze recency={recency} {self._search.identity}"

    def recency_aware(self) -> ClozeReader:
        """The same with recency, for the baseline rag_recent."""
        return ClozeReader(search=self._search, recency=True)

    async def answer(self, questions: Sequence[Question], documents: Sequence[Passage]) -> list[str]:
        pieces = in_sentences(documents)
        if not pieces:
            return [""] * len(questions)
        if self._recency:
            return [_newest(question.text, pieces) for question in questions]
        index = self._search.over(pieces)
        return [_best(question.text, index) for question in questions]

    def counts(self) -> dict[str, float]:
        """Nothing: it costs nothing."""
        return {}

    async def close(self) -> None:
        """Nothing is open."""


def _best(question: str, index: Index) -> str:
    before, blank, _ = _parted(question)
    found = index.search(before, top_k=1)
    if not found:
        return UNKNOWN
    return (_after(words_of(before), words_of(found[0].text)) or UNKNOWN) if blank else found[0].text


def _newest(question: str, pieces: Sequence[Passage]) -> str:
    wanted = words_of(_parted(question)[0])
    is_history = bool(wanted) and wanted[-1].lower() == BEFORE
    said = []
    for piece in pieces:
        words = words_of(piece.text)
        if words and words[0].lower() != RUMOUR:
            # Raw text does not say what held before: the value that it gives is its last word.
            found = _last(wanted[:-1], words) if is_history else _after(wanted, words)
            said += [found] if found else []
    if is_history:
        return said[-2] if len(said) > 1 else UNKNOWN
    return said[-1] if said else UNKNOWN


def _parted(question: str) -> tuple[str, bool, str]:
    """The text before the blank, whether there is one, and what follows it."""
    match = _BLANK.search(question)
    return (question, False, "") if match is None else (question[: match.start()], True, question[match.end() :])


def _after(wanted: Sequence[str], words: Sequence[str]) -> str:
    """The word after the cue, the last of `wanted`, where `words` holds all of them; else ""."""
    plain = [word.lower() for word in words]
    if not wanted or not {word.lower() for word in wanted} <= set(plain):
        return ""
    return "".join(words[plain.index(wanted[-1].lower()) + 1 :][:1])


def _last(wanted: Sequence[str], words: Sequence[str]) -> str:
    """The last word of `words`, where they hold all of `wanted` and go on after the last of them; else ""."""
    return words[-1] if _after(wanted, words) else ""
