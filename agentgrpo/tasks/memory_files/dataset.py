"""The task set `memory_files`: a user's own files and published data sets, for environment=memory."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from agentgrpo.core.errors import ConfigError, DataError, did_you_mean
from agentgrpo.core.types import Passage, Task
from agentgrpo.tasks.base import SPLITS, split_of
from agentgrpo.tasks.generated import hash_of
from agentgrpo.tasks.memory_files import (
    hotpotqa,
    jsonl,
    labels,
    mem_alpha,
    perltqa,
    personamem,
    pubmed_rct,
    squad,
    summary,
)
from agentgrpo.tasks.memory_files.building import assign, by_parts, merged, one_each, own_paragraphs
from agentgrpo.tasks.memory_files.document import Cut, Document, DocumentSource
from agentgrpo.tasks.memory_files.labelling import labelled

_LOG = logging.getLogger(__name__)
Splits = Mapping[str, Sequence[Document]]
Build = Callable[[Splits, Cut], Mapping[str, Sequence[Task]]]


def _by_split(build: Callable[[Sequence[Document], Cut], Iterator[Task]]) -> Build:
    return lambda splits, cut: {name: list(build(documents, cut)) for name, documents in splits.items()}


@dataclass(frozen=True, slots=True)
class _Format:
    read: Callable[[DocumentSource], Iterator[Document]]
    build: Build


FORMATS: Mapping[str, _Format] = {
    "jsonl": _Format(jsonl.read, _by_split(one_each)),
    "squad": _Format(squad.read, _by_split(by_parts)),
    "hotpotqa": _Format(hotpotqa.read, lambda splits, cut: _by_split(merged)(own_paragraphs(splits, cut), cut)),
    "perltqa": _Format(perltqa.read, _by_split(by_parts)),
    "labels": _Format(labels.read, labelled),
    "pubmed_rct": _Format(pubmed_rct.read, labelled),
    "summary": _Format(summary.read, _by_split(one_each)),
    "personamem": _Format(personamem.read, _by_split(one_each)),
    "mem_alpha": _Format(mem_alpha.read, _by_split(one_each)),
}
"""Formats by name; each module documents its files."""


class MemoryFiles:
    """A TaskDataset of chunks to read and questions to answer, from files.

    `path`: the file, in `format`. `dev_path`, `test_path`: files of the same format that are wholly dev or test; that
    split then gets no document of `path`. Rows that name no split are assigned by the hash of (seed, document):
    `test_fraction` of them to test, `dev_fraction` to dev, the others to train. No document or paragraph is in two
    splits. `contexts`: the second file of perltqa and personamem.

    `metric`: the judge's route for questions that name none; null = the format's own, "" = none.
    `chunk_words`: maximum words of a chunk, cut between sentences; chunks given in a file are left unchanged.
    `chunk_messages`: maximum messages of a chat's chunk. `max_chunks`: maximum chunks of a task. squad, perltqa,
    hotpotqa and the label sets are divided into as many tasks as needed; in other formats, whose questions are about
    the whole text, a text with more chunks is refused or left out (`too_long`). `questions_per_task`: maximum, chosen
    by `seed`. null = no limit. `unanswerable`: the expected answer to squad's unanswerable questions; null = they are
    left out.
    `labels`: shown as number or name. `label_level`: fine, or coarse for a file with two levels.

    Equal files and settings give equal tasks in equal order. `left_out`: reason -> number of documents or questions
    left out, which are also logged as a warning.

    Raises DataError with file, position and reason if a file cannot be read; ConfigError for bad settings."""

    def __init__(
        self,
        *,
        path: str,
        format: str = "jsonl",
        dev_path: str | None = None,
        test_path: str | None = None,
        contexts: str | None = None,
        metric: str | None = None,
        chunk_words: int = 300,
        chunk_messages: int = 10,
        max_chunks: int | None = 20,
        too_long: Literal["refuse", "leave_out"] = "refuse",
        questions_per_task: int | None = 20,
        unanswerable: str | None = None,
        labels: Literal["number", "name"] = "number",
        label_level: Literal["fine", "coarse"] = "fine",
        dev_fraction: float = 0.1,
        test_fraction: float = 0.2,
        seed: int = 0,
    ) -> None:
        if format not in FORMATS:
            raise ConfigError(f"task.format={format}; {', '.join(FORMATS)} are allowed.{did_you_mean(format, FORMATS)}")
        counts = {"chunk_words": chunk_words, "chunk_messages": chunk_messages, "max_chunks": max_chunks}
        for name, count in {**counts, "questions_per_task": questions_per_task}.items():
            if count is not None and count < 1:
                raise ConfigError(f"task.{name}={count}; it must be at least 1")
        if dev_fraction < 0 or test_fraction < 0 or dev_fraction + test_fraction > 1:
            raise ConfigError(
                f"task.dev_fraction={dev_fraction}, task.test_fraction={test_fraction}; both must be >= 0 and their "
                "sum <= 1"
            )
        self.left_out: Counter[str] = Counter()
        cut = Cut(
            chunk_words=chunk_words,
            chunk_messages=chunk_messages,
            max_chunks=max_chunks,
            leaves_out=too_long == "leave_out",
            questions_per_task=questions_per_task,
            names_labels=labels == "name",
            label_metric="exact_match" if metric is None else metric,
            seed=seed,
            left_out=self.left_out,
        )
        source = DocumentSource(
            path=Path(path).expanduser(),
            split=None,
            contexts=Path(contexts).expanduser() if contexts is not None else None,
            metric=metric,
            unanswerable=unanswerable,
            label_level=label_level,
            left_out=self.left_out,
        )
        own_files = {name: file for name, file in (("dev", dev_path), ("test", test_path)) if file is not None}
        sources = [source, *(replace(source, path=Path(f).expanduser(), split=s) for s, f in own_files.items())]
        fractions = {"dev": dev_fraction, "test": test_fraction} | dict.fromkeys(own_files, 0.0)
        documents = [document for s in sources for document in FORMATS[format].read(s)]
        tasks = FORMATS[format].build(assign(documents, fractions, cut), cut)
        self._splits = _with_own_ids({name: tasks.get(name, ()) for name in SPLITS})
        if not any(self._splits.values()):
            why = "; ".join(f"{count} left out: {reason}" for reason, count in sorted(self.left_out.items()))
            raise DataError(f"task.path: '{path}' makes no task ({why or 'it is empty'}); is it a {format} file?")
        if self.left_out:
            _LOG.warning(
                "%s: left out: %s", path, "; ".join(f"{n} ({why})" for why, n in sorted(self.left_out.items()))
            )
        settings = [format, metric, chunk_words, chunk_messages, max_chunks, too_long, questions_per_task, unanswerable]
        files = [*(s.path for s in sources), *([source.contexts] if source.contexts else [])]
        self.fingerprint = hash_of(
            [*settings, labels, label_level, dev_fraction, test_fraction, seed, sorted(own_files)],
            [blake2b(file.read_bytes(), digest_size=16).hexdigest() for file in files],
        )

    def split(self, name: str) -> Sequence[Task]:
        return split_of(self._splits, name)

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        return {}

    def thesaurus(self) -> Mapping[str, Sequence[str]]:
        return {}


def _with_own_ids(splits: Mapping[str, Sequence[Task]]) -> dict[str, list[Task]]:
    """Make ids unique: a repeated id gets a number, because published files repeat titles."""
    used: set[str] = set()
    found: dict[str, list[Task]] = {name: [] for name in splits}
    for name, tasks in splits.items():
        for task in tasks:
            id, number = task.id, 1
            while id in used:
                number += 1
                id = f"{task.id}#{number}"
            used.add(id)
            found[name].append(replace(task, id=id))
    return found
