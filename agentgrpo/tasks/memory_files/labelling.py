"""Tasks of learning labels from examples: some are shown in chunks, later ones are asked about."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from agentgrpo.core.chance import generator
from agentgrpo.core.types import Task
from agentgrpo.tasks.dialogue import Question, memory_task
from agentgrpo.tasks.memory_files.building import Packing, Piece, cut_text, num_words
from agentgrpo.tasks.memory_files.document import Cut, Document, DocumentUnit


def labelled(splits: Mapping[str, Sequence[Document]], cut: Cut) -> dict[str, list[Task]]:
    """Build tasks from documents whose units have labels. A label is shown as its number among the sorted labels of all
    splits, because a name can be guessed without a memory, or as its name (cut.names_labels)."""
    names = sorted({u.label for documents in splits.values() for d in documents for u in d.units})
    shown = {name: name if cut.names_labels else str(i) for i, name in enumerate(names)}
    return {
        split: list(_tasks(split, documents[0].source, _examples(split, documents, cut), shown, cut))
        for split, documents in splits.items()
        if documents
    }


def _examples(split: str, documents: Sequence[Document], cut: Cut) -> Iterator[DocumentUnit]:
    """Yield each text once, with the documents in random order; the examples of one document stay together."""
    seen: set[str] = set()
    for document in generator("examples", cut.seed, split).sample(documents, len(documents)):
        for unit in document.units:
            text = " ".join(unit.text.casefold().split())
            if text in seen:
                cut.left_out["has a text that was there before"] += 1
                continue
            seen.add(text)
            yield unit


def _tasks(
    split: str, source: str, examples: Iterator[DocumentUnit], shown: Mapping[str, str], cut: Cut
) -> Iterator[Task]:
    """A fifth of the remaining examples, but at least one and at most questions_per_task, is held back for questions,
    so that a short file has some too. An example whose label no chunk of the task shows waits for the next task."""
    left, number = deque(examples), 0
    while len(left) >= 2:
        held_back = max(1, len(left) // 5)
        most = held_back if cut.questions_per_task is None else cut.questions_per_task
        packing, labels = Packing(cut.chunk_words, None, "\n\n"), set[str]()
        while len(left) > min(held_back, most):
            pieces = [_piece(left[0], shown[left[0].label], cut)]
            if cut.max_chunks is not None and packing.needs(pieces) > cut.max_chunks:
                break
            packing.add(pieces)
            labels.add(left.popleft().label)
        asked, waiting = list[DocumentUnit](), list[DocumentUnit]()
        while left and len(asked) < most:
            unit = left.popleft()
            (asked if unit.label in labels else waiting).append(unit)
        left.extendleft(reversed(waiting))
        if not asked:
            break
        number += 1
        yield memory_task(
            f"{source}/{split}/{number}",
            chunks=packing.texts,
            questions=[_question(unit, shown[unit.label], cut) for unit in asked],
            data_source=source,
        )
    if left:
        cut.left_out["too few examples with its label"] += len(left)


def _piece(unit: DocumentUnit, label: str, cut: Cut) -> Piece:
    """An example as a chunk shows it. A text longer than a chunk is cut to its beginning, to leave room for the
    label."""
    frame = num_words(f"Text: \nLabel: {label}")
    text, size = cut_text(unit.text, max(1, cut.chunk_words - frame))[0]
    return f"Text: {text}\nLabel: {label}", size + frame


def _question(unit: DocumentUnit, label: str, cut: Cut) -> Question:
    return Question(
        text=f"Which label has this text? Answer with the label alone.\nText: {unit.text}",
        answers=(label,),
        kind="label",
        metric=cut.label_metric,
    )
