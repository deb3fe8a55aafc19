"""A user's own questions and documents, each in one file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgrpo.core.types import Passage, Task
from agentgrpo.tasks.base import SPLITS, TaskDataset
from agentgrpo.tasks.malformed import Malformed
from agentgrpo.tasks.questions.dataset import QuestionSet
from agentgrpo.tasks.questions.intake import Filter, Intake, QuestionSource, corpora_of
from agentgrpo.tasks.questions.splitting import Shares, dealt
from agentgrpo.tasks.records import stem_of


def jsonl(
    *,
    questions: str,
    corpus: str | None = None,
    web_corpus: str | None = None,
    thesaurus: str | None = None,
    dev_fraction: float = 0.1,
    test_fraction: float = 0.2,
    id_key: str = "id",
    question_key: str = "question",
    answers_key: str = "answers",
    corpus_keys: Mapping[str, str] | None = None,
    seed: int = 0,
) -> QuestionSet:
    """Read questions to be answered from a corpus, and optionally from a second one ("web") that costs more. No corpus
    is needed for an agent that does not search, or whose retrieval server has its own. This is the task set `questions`
    with one source, whose ids are the tasks' ids.

    `questions`: rows {"question", "answers"?, "id"?, "split"?, ...} of JSON lines, CSV, TSV or parquet, or any format
    that `questions` reads (published data sets, other trainers). The first three keys can be renamed, and are then
    required. `answers` is a string or a list of acceptable strings; without answers the environment itself must grade
    an attempt. A missing id is made from the question. Further keys become the task's metadata ("files": {name: text}
    are the files in the workspace of a tool agent); the notes list them, and the keys that are not used. A row without
    "split" is assigned by the hash of (seed, question): `test_fraction` of these rows to test, `dev_fraction` to dev,
    the others to train. No question is in two splits.
    `corpus`, `web_corpus`: rows {"id", "text", "title"?, "url"?}, which `corpus_keys` can rename. `thesaurus`: a JSON
    object {query word: [words that documents use instead]} for the reranker.

    Raises DataError with file, line number and reason for everything that cannot be read; ConfigError for bad
    fractions."""
    given = {"id": id_key, "question": question_key, "answers": answers_key}
    keys = {ours: theirs for ours, theirs in given.items() if theirs != ours}
    source = QuestionSource(path=questions, keys=keys, filter=Filter(has_answer=False))
    shares = Shares(dev=dev_fraction, test=test_fraction, seed=seed)
    intake = Intake(stem_of(Path(questions)), source, shares, what="questions", prefix="")
    malformed = Malformed()
    asked = intake.asked(malformed)
    corpora = corpora_of(corpus, web_corpus, thesaurus, keys=corpus_keys or {}, malformed=malformed)
    malformed.refuse()
    kept, notes = dealt(asked)
    return QuestionSet(
        asked=kept,
        corpora=corpora,
        mixture=None,
        notes=[*intake.notes(), *notes],
        settings=[dev_fraction, test_fraction, seed],
    )


def export(dataset: TaskDataset, folder: str | Path) -> dict[str, Path]:
    """Write a task set as the files that `jsonl` reads: questions.jsonl, corpus.jsonl (the vdb corpus) and web.jsonl if
    there is a web corpus. Returns the paths by keyword of `jsonl`. Existing files are replaced."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [_row(task, split) for split in SPLITS for task in dataset.split(split)]
    paths = {"questions": _write(folder / "questions.jsonl", rows)}
    for name, keyword, file in (("vdb", "corpus", "corpus.jsonl"), ("web", "web_corpus", "web.jsonl")):
        if name in dataset.corpora():
            paths[keyword] = _write(folder / file, [_passage(p) for p in dataset.corpora()[name]])
    return paths


def _row(task: Task, split: str) -> dict[str, Any]:
    row = {"id": task.id, "question": task.question, "answers": list(task.references), "split": split}
    return {**row, **task.metadata, **row}  # the task's own values replace metadata columns of these names


def _passage(passage: Passage) -> dict[str, str]:
    extra = {"title": passage.title, "url": passage.url}
    return {"id": passage.id, "text": passage.text, **{key: value for key, value in extra.items() if value}}


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path
