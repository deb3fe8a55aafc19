"""What a citation is worth: support, not quantity."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentgrpo.core.types import Citation, Episode
from agentgrpo.rewards.citations import CitationSupport, supporting
from tests.builders import episode, task

QUESTION = "Where was the founder of Velmor born?"
HOP_1, HOP_2 = "Velmor was founded by Castin.", "Castin was born in Roka."
CHATTER, OTHER_CHATTER = "Tours of Velmor are popular.", "Old songs honour Castin."
NAMESAKE = "Many guides describe Roka."
"""It holds the answer and has nothing to do with the question."""
SHOWN = {"v1": HOP_1, "n1": CHATTER, "c1": HOP_2, "n2": OTHER_CHATTER, "n3": NAMESAKE}


def cites(*ids: str, answer: str | None = "Roka", question: str = QUESTION) -> Episode:
    citations = [Citation(doc_id=id_, marker=f"[R1Q1D{i}]", text=SHOWN.get(id_, "")) for i, id_ in enumerate(ids, 1)]
    return episode(task(question), answer=answer, citations=citations, retrieved=list(SHOWN))


@pytest.mark.parametrize(
    ("question", "answer", "passages", "found"),
    [
        (QUESTION, "Roka", [HOP_1, HOP_2], [True, True]),
        (QUESTION, "Roka", list(SHOWN.values()), [True, False, True, False, False]),
        (QUESTION, "Roka", [HOP_1], [False]),  # a hop to nowhere
        (QUESTION, "roka!", [HOP_2], [True]),
        (QUESTION, "Rok", [HOP_2], [False]),  # not a word of it
        (QUESTION, "Castin", [HOP_2], [True]),
        (QUESTION, "yes", [HOP_1, HOP_2], [False, False]),
        # the passage that holds it has no word of the question
        ("Where is the maker of Zelt based?", "Roka", ["Zelt is by Pelnor", "Pelnor sits in Roka"], [True, True]),
        (QUESTION, "", [HOP_2], [False]),
        (QUESTION, "Roka", [], []),
    ],
)  # fmt: skip
def test_what_supports_an_answer(question: str, answer: str, passages: Sequence[str], found: list[bool]) -> None:
    assert supporting(question, answer, passages) == found


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (cites("c1"), 2.0),
        (cites("v1", "c1"), 2.0),
        (cites("c1", "c1"), 2.0),
        (cites("c1", "made-up"), 2.0),
        (cites("v1", "c1", "n1"), 2 / 3),
        (cites("c1", "n1"), 0.0),
        (cites("n1"), 0.0),
        (cites(*SHOWN), 0.0),
        (cites(), 0.0),
        (cites("made-up"), 0.0),
        (cites("c1", answer=None), 0.0),
        (cites("c1", answer=" "), 0.0),
    ],
)
def test_each_needless_citation_undoes_one_that_supports(of: Episode, expected: float) -> None:
    assert CitationSupport(weight=2.0)(of, 1.0) == pytest.approx(expected)


def test_a_wrong_answer_earns_nothing_by_citing() -> None:
    """It stands in all that was shown, and is wrong."""
    of = cites("c1", answer="Castin")
    assert CitationSupport(weight=2.0)(of, 1.0) == 2.0
    assert [CitationSupport(weight=2.0)(of, grade) for grade in (0.0, 0.5)] == [0.0, 1.0]
