"""Documents as tasks: one each, several of one, or one of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentgrpo.dialogue import Question, memory_task
from agentgrpo.errors import DataError
from agentgrpo.tasks.chance import generator
from agentgrpo.tasks.memory_files.chunking import Packing, Piece, packing_of, pieces_of
from agentgrpo.tasks.memory_files.document import Cut, Document, Unit
from agentgrpo.types import Task


def one_each(documents: Sequence[Document], cut: Cut) -> Iterator[Task]:
    """A task for each document, of all its text and of questions about all of it."""
    for document in documents:
        chunks = [u.text for u in document.units] if document.is_chunked else _packed(document, cut)
        if not _is_too_long(document, len(chunks), cut):
            yield _task(document, document.id, chunks, document.questions, cut)


def _packed(document: Document, cut: Cut) -> list[str]:
    packing = packing_of(document, cut)
    for unit in document.units:
        packing.add(pieces_of(unit, cut))
    return packing.texts


def by_parts(documents: Sequence[Document], cut: Cut) -> Iterator[Task]:
    """As many tasks of a document as its chunks take; each asks what its own units answer."""
    for document in documents:
        parts = list(_parts(document, cut))
        for number, (chunks, questions) in enumerate(parts, start=1):
            yield _task(document, document.id if len(parts) == 1 else f"{document.id}/{number}", chunks, questions, cut)


def _parts(document: Document, cut: Cut) -> Iterator[tuple[list[str], list[Question]]]:
    packing, questions = packing_of(document, cut), list[Question]()
    for unit in document.units:
        pieces = pieces_of(unit, cut)
        if _is_too_long(document, packing_of(document, cut).needs(pieces), cut, "a paragraph of it"):
            continue
        if cut.max_chunks is not None and packing.needs(pieces) > cut.max_chunks:
            if questions:
                yield packing.texts, questions
            packing, questions = packing_of(document, cut), []
        packing.add(pieces)
        questions += unit.questions
    if questions:
        yield packing.texts, questions


def merged(documents: Sequence[Document], cut: Cut) -> Iterator[Task]:
    """Documents with few questions each, several to a task while their chunks and questions fit; a paragraph that two
    of them have stands there once."""
    held: list[Document] = []
    packing, seen = Packing(cut.chunk_words, None, "\n\n"), set[str]()
    for document in documents:
        if _is_too_long(document, _needs(document.units, set(), packing_of(document, cut), cut), cut):
            continue
        num_questions = sum(len(d.questions) for d in (*held, document))
        if held and (
            (cut.max_chunks is not None and _needs(document.units, seen, packing, cut) > cut.max_chunks)
            or (cut.questions_per_task is not None and num_questions > cut.questions_per_task)
        ):
            yield _of_several(held, packing, cut)
            held, packing, seen = [], Packing(cut.chunk_words, None, "\n\n"), set()
        packing.add(_new_pieces(document.units, seen, cut))
        seen.update(u.text for u in document.units)
        held.append(document)
    if held:
        yield _of_several(held, packing, cut)


def _of_several(documents: Sequence[Document], packing: Packing, cut: Cut) -> Task:
    questions = [q for d in documents for q in d.questions]
    return _task(documents[0], documents[0].id, packing.texts, questions, cut)


def _needs(units: Sequence[Unit], seen: set[str], packing: Packing, cut: Cut) -> int:
    return packing.needs(_new_pieces(units, seen, cut))


def _new_pieces(units: Sequence[Unit], seen: set[str], cut: Cut) -> list[Piece]:
    fresh = {u.text: u for u in units if u.text not in seen}
    return [piece for unit in fresh.values() for piece in pieces_of(unit, cut)]


def _is_too_long(document: Document, count: int, cut: Cut, what: str = "it") -> bool:
    """True where it is to be left out. Raises DataError where it is to be refused."""
    if cut.max_chunks is None or count <= cut.max_chunks:
        return False
    if not cut.leaves_out:
        raise DataError(
            f"{document.where}: {what} takes {count} chunks, and task.max_chunks is {cut.max_chunks}; raise that, "
            "task.chunk_words or (chats) task.chunk_messages, or leave such out: task.too_long=leave_out"
        )
    cut.left_out["too long"] += 1
    return True


def _task(document: Document, task_id: str, chunks: Sequence[str], questions: Sequence[Question], cut: Cut) -> Task:
    most = cut.questions_per_task
    if most is not None and len(questions) > most:
        chosen = sorted(generator("questions", cut.seed, task_id).sample(range(len(questions)), most))
        questions = [questions[i] for i in chosen]
    return memory_task(
        task_id,
        chunks=chunks,
        questions=questions,
        data_source=document.source,
        facts=document.facts,
        metadata=document.metadata,
    )
