"""Readers: what they answer from documents, and that nothing else speaks through them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentgrpo.config.build import build_node
from agentgrpo.core.types import Passage
from agentgrpo.environments.memory.reader import ClozeReader
from agentgrpo.environments.memory.search import bm25
from agentgrpo.tasks.dialogue import Question


def ask(*texts: str) -> list[Question]:
    return [Question(text=text, answers=("x",)) for text in texts]


def notes(*texts: str, kind: str = "fact") -> list[Passage]:
    return [Passage(id=str(i), text=text, title=kind) for i, text in enumerate(texts)]


def raw(*texts: str) -> list[Passage]:
    return notes(*texts, kind="")


async def one(reader: ClozeReader, question: str, documents: Sequence[Passage]) -> str:
    (answer,) = await reader.answer(ask(question), documents)
    return answer


HOME = "Velmor lives in ___"
EARLIER = "Velmor lives before ___"


@pytest.mark.parametrize(
    ("question", "documents", "answer"),
    [
        (HOME, notes("Velmor lives in Castin"), "Castin"),
        (HOME, notes("Velmor lives in Castin."), "Castin"),
        (HOME + ".", notes("velmor LIVES in Castin"), "Castin"),
        (HOME, notes("Velmor lives in Castin before Ardun"), "Castin"),
        (EARLIER, notes("Velmor lives in Castin before Ardun"), "Ardun"),
        (EARLIER, notes("Velmor lives in Castin"), "unknown"),
        (HOME, notes("Velmor laughed a lot"), "unknown"),
        (HOME, notes("Osra works for Belwin"), "unknown"),
        (HOME, notes("Velmor lives in"), "unknown"),
        (HOME, notes("Velmor lives in Castin", "Velmor lives in Ardun"), "Ardun"),
        (HOME, notes("Velmor lives in Castin", "Velmor lives in Ardun", "Osra lives in Delmar"), "Ardun"),
        (HOME, notes("Osra lives in Delmar", "Velmor comes from Castin"), "unknown"),
        (HOME, notes("Velmor lives in O'Neill-on-Sea"), "O'Neill-on-Sea"),
        ("Velmor lives", notes("Osra works for Belwin", "Velmor lives in Castin"), "Velmor lives in Castin"),
        ("Velmor lives", notes("Osra works for Belwin"), "unknown"),
        ("___ lives in Castin", notes("Velmor lives in Castin"), "unknown"),
        ("", notes("Velmor lives in Castin"), "unknown"),
        (HOME, [], ""),
        (HOME, raw(" \n "), ""),
        (HOME, raw("Velmor laughed. Velmor lives in Castin. Osra drank some tea."), "Castin"),
        (HOME, raw("Osra lives in Delmar!\nVelmor lives in\nCastin"), "unknown"),
    ],
)
async def test_the_blank_is_filled_from_the_best_entry(question: str, documents: list[Passage], answer: str) -> None:
    assert await one(ClozeReader(), question, documents) == answer


async def test_a_long_newer_sentence_loses_to_a_short_older_one_without_recency() -> None:
    documents = raw("Velmor lives in Castin. Velmor now lives in Ardun.")
    assert await one(ClozeReader(), HOME, documents) == "Castin"
    assert await one(ClozeReader(recency=True), HOME, documents) == "Ardun"


CHUNKS = raw(
    "Velmor lives in Castin. Osra laughed a lot.",
    "Velmor now lives in Ardun. Perhaps Velmor lives in Delmar.",
    "Please forget where Velmor lives. Osra works for Belwin.",
)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (HOME, "unknown"),
        (EARLIER, "unknown"),
        ("Osra works for ___", "Belwin"),
        ("Osra works before ___", "unknown"),
        ("Osra trusts only ___", "unknown"),
        ("___", "unknown"),
    ],
)
async def test_recency_reads_raw_text_as_it_changes_its_mind(question: str, answer: str) -> None:
    assert await one(ClozeReader().recency_aware(), question, CHUNKS) == answer
    assert await one(ClozeReader(recency=True), question, []) == ""


async def test_what_held_before_is_what_was_said_last_but_one() -> None:
    documents = raw("Velmor lives in Castin.", "Velmor now lives in Ardun.", "Velmor now lives in Delmar.")
    reader = ClozeReader(recency=True)
    assert [await one(reader, question, documents) for question in (HOME, EARLIER)] == ["Delmar", "Ardun"]


async def test_until_it_is_withdrawn_the_newest_holds() -> None:
    reader = ClozeReader(recency=True)
    assert [await one(reader, question, CHUNKS[:2]) for question in (HOME, EARLIER)] == ["Ardun", "Castin"]
    other = raw("Velmor lives in Castin.", "Please forget where Osra lives.", "Please forget what Velmor plays.")
    assert await one(reader, HOME, other) == "Castin"


async def test_a_change_says_what_held_until_then() -> None:
    """What a sentence says that alone was found of the past."""
    documents = raw("After Castin, Velmor lives in Ardun.")
    reader = ClozeReader(recency=True)
    assert [await one(reader, question, documents) for question in (HOME, EARLIER)] == ["Ardun", "Castin"]


MET = "Velmor met how many ___"


@pytest.mark.parametrize("recency", [False, True])
@pytest.mark.parametrize(
    ("texts", "answer"),
    [
        (("Velmor met Osra", "Velmor met Dorin", "velmor met osra again"), "2"),
        (("Velmor met Osra", "Dorin met Velmor", "Osra lives in Castin"), "1"),
        (("Dorin met Velmor", "Velmor met"), "unknown"),
        (("Perhaps Velmor met Osra",), "unknown"),
    ],
)
async def test_how_many_are_counted_over_all_entries(recency: bool, texts: Sequence[str], answer: str) -> None:
    reader = ClozeReader(recency=recency)
    assert await one(reader, MET, notes(*texts)) == answer
    assert await one(reader, MET, raw(". ".join(texts))) == answer


async def test_every_question_is_answered_in_order() -> None:
    reader = ClozeReader()
    questions = ask(HOME, "Osra works for ___", EARLIER)
    documents = notes("Osra works for Belwin", "Velmor lives in Castin before Ardun")
    assert await reader.answer(questions, documents) == ["Castin", "Belwin", "Ardun"]
    assert await reader.answer(questions, []) == ["", "", ""]
    assert await reader.answer([], documents) == []
    assert reader.counts() == {}
    await reader.close()


def test_cloze_builds_from_its_node() -> None:
    reader = build_node("reader", {"name": "cloze", "recency": True, "search": {"name": "bm25", "b": 0.5}})
    assert isinstance(reader, ClozeReader)
    assert reader.identity == f"cloze recency=True {bm25(b=0.5).identity}"
    assert build_node("reader", {"name": "cloze"}).identity != reader.identity
