"""Build tasks from documents: one task each, several from one, or one from several."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from agentgrpo.core.chance import generator, uniform
from agentgrpo.core.errors import DataError
from agentgrpo.core.types import Task
from agentgrpo.tasks.base import SPLITS
from agentgrpo.tasks.dialogue import Question, memory_task
from agentgrpo.tasks.memory_files.document import Cut, Document, DocumentUnit

# --- Cutting texts into chunks by number of words.

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_STOP = "。！？"
_WORD = re.compile(rf"[{_CJK}][{_STOP}]*|[^\s{_CJK}{_STOP}]+[{_STOP}]*|[{_STOP}]+")
_SENTENCE_END = re.compile(rf"(?<=[.!?])[\"')\]]*\s+|(?<=[{_STOP}])(?![{_STOP}])|\n+")

Piece = tuple[str, int]
"""(text, number of words)."""


def num_words(text: str) -> int:
    """Count words between white space, or characters in scripts without spaces between words. English has about 1.3
    tokens per word."""
    return sum(1 for _ in _WORD.finditer(text))


def cut_text(text: str, limit: int) -> list[Piece]:
    """Cut `text` into pieces of at most `limit` words, between sentences if possible, else between words. Only white
    space between pieces is lost."""
    if (whole := num_words(text)) <= limit:
        return [(text.strip(), whole)]
    ends = [m.end() for m in _SENTENCE_END.finditer(text)] + [len(text)]
    pieces: list[Piece] = []
    start = held = last = 0
    for end in ends:
        count = num_words(text[last:end])
        if held and held + count > limit:
            pieces.append((text[start:last].strip(), held))
            start, held = last, 0
        if count > limit:
            at = [m.start() for m in _WORD.finditer(text, last, end)]
            cuts = [*(at[i] for i in range(0, count, limit)), end]
            pieces += [(text[a:b].strip(), min(limit, count - i * limit)) for i, (a, b) in enumerate(pairwise(cuts))]
            start, held = end, 0
        else:
            held += count
        last = end
    if held:
        pieces.append((text[start:].strip(), held))
    return pieces


@dataclass(slots=True)
class Packing:
    """Chunks that are filled with one unit after the other."""

    max_words: int
    max_units: int | None
    separator: str
    chunks: list[list[str]] = field(default_factory=list)
    _words: int = 0

    def needs(self, pieces: Sequence[Piece]) -> int:
        """The number of chunks after adding `pieces`."""
        count, words, units = len(self.chunks), self._words, len(self.chunks[-1]) if self.chunks else 0
        for _, size in pieces:
            if not count or words + size > self.max_words or units == self.max_units:
                count, words, units = count + 1, 0, 0
            words, units = words + size, units + 1
        return count

    def add(self, pieces: Sequence[Piece]) -> None:
        for text, size in pieces:
            full = not self.chunks or len(self.chunks[-1]) == self.max_units
            if full or self._words + size > self.max_words:
                self.chunks.append([])
                self._words = 0
            self.chunks[-1].append(text)
            self._words += size

    @property
    def texts(self) -> list[str]:
        return [self.separator.join(chunk) for chunk in self.chunks]


def packing_of(document: Document, cut: Cut) -> Packing:
    """An empty Packing for a document."""
    if document.is_chat:
        return Packing(cut.chunk_words, cut.chunk_messages, "\n")
    return Packing(cut.chunk_words, None, "\n\n")


def pieces_of(unit: DocumentUnit, cut: Cut) -> list[Piece]:
    return cut_text(unit.text, cut.chunk_words)


def one_each(documents: Sequence[Document], cut: Cut) -> Iterator[Task]:
    """Yield one task for each document, with its whole text and the questions about it."""
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
    """Yield as many tasks from a document as its chunks need; each asks the questions that its own units answer."""
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
    """Put several documents with few questions into one task while their chunks and questions fit; a paragraph that
    they share appears once."""
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


def _needs(units: Sequence[DocumentUnit], seen: set[str], packing: Packing, cut: Cut) -> int:
    return packing.needs(_new_pieces(units, seen, cut))


def _new_pieces(units: Sequence[DocumentUnit], seen: set[str], cut: Cut) -> list[Piece]:
    fresh = {u.text: u for u in units if u.text not in seen}
    return [piece for unit in fresh.values() for piece in pieces_of(unit, cut)]


def _is_too_long(document: Document, count: int, cut: Cut, what: str = "it") -> bool:
    """Whether to leave out a document that takes `count` chunks. Raises DataError if it is to be refused."""
    if cut.max_chunks is None or count <= cut.max_chunks:
        return False
    if not cut.leaves_out:
        raise DataError(
            f"{document.where}: {what} takes {count} chunks, and task.max_chunks is {cut.max_chunks}; raise that, "
            "task.chunk_words or (chats) task.chunk_messages, or leave it out: task.too_long=leave_out"
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


# --- Which document goes to which split. No text of a test task is trained on.

_BY_CLAIM = ("test", "dev", "train")
"""Splits by their claim to a shared text. Test comes first, because published test sets are used for comparison."""


def assign(documents: Sequence[Document], fractions: Mapping[str, float], cut: Cut) -> dict[str, list[Document]]:
    """Assign documents to splits, keeping their order. Documents linked by keys form a group. It goes to the split that
    its members name, or by the hash of (seed, its smallest id) if they name none. If they name several, it goes to the
    one nearest to test, and the members that name another are left out.

    fractions: {"dev": share, "test": share} of the groups that name no split."""
    splits: dict[str, list[Document]] = {name: [] for name in SPLITS}
    chosen: dict[int, str] = {}
    groups = _groups(documents)
    for members in groups:
        said = {d.split for i in members if (d := documents[i]).split}
        split = next((name for name in _BY_CLAIM if name in said), None)
        if split is None:
            u = uniform("split", cut.seed, min(documents[i].id for i in members))
            test, dev = fractions["test"], fractions["dev"]
            split = "test" if u < test else "dev" if u < test + dev else "train"
        for i in members:
            if documents[i].split in (None, split):
                chosen[i] = split
            else:
                cut.left_out[f"shares a text with a document of {split}"] += 1
    for i, document in enumerate(documents):
        if i in chosen:
            splits[chosen[i]].append(document)
    return splits


def own_paragraphs(splits: Mapping[str, Iterable[Document]], cut: Cut) -> dict[str, list[Document]]:
    """Give each paragraph to one split, for documents that draw paragraphs from a common pool (HotpotQA). A document
    loses the paragraphs of other splits; a document that needs such a paragraph is left out."""
    owner: dict[str, str] = {}
    kept: dict[str, list[Document]] = {name: [] for name in SPLITS}
    for split in _BY_CLAIM:
        for document in splits[split]:
            units = tuple(u for u in document.units if owner.get(u.text, split) == split)
            if not units or any(u.is_needed for u in document.units if owner.get(u.text, split) != split):
                cut.left_out["needs a paragraph of another split"] += 1
                continue
            owner.update((u.text, split) for u in units)
            kept[split].append(replace(document, units=units))
    return kept


def _groups(documents: Sequence[Document]) -> list[list[int]]:
    """Group the positions of documents that are connected through keys."""
    parent = list(range(len(documents)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    first: dict[str, int] = {}
    for i, document in enumerate(documents):
        for key in document.keys:
            parent[root(i)] = root(first.setdefault(key, i))
    groups: dict[int, list[int]] = {}
    for i in range(len(documents)):
        groups.setdefault(root(i), []).append(i)
    return list(groups.values())
