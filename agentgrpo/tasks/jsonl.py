"""A user's own questions and documents, in a file each."""

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
    """Questions to be answered from a corpus, and optionally from a second one ("web") that costs more; or without any,
    by an agent that does not search, or whose server has its own. The task set `questions` with one source, whose ids
    are the tasks'.

    `questions`: rows {"question", "answers"?, "id"?, "split"?, ...} of JSON lines, CSV, TSV or parquet, or a format
    that `questions` reads, a published one or that of another trainer; the first three can be renamed, and are needed
    then. `answers` is a string or a list of acceptable ones; without any the environment itself has to say what an
    attempt is worth. An id that is missing is made of the question. Further keys become the task's metadata ("files":
    {name: text} is what lies in the workspace of a tool agent); the notes say which, and which are not used. A row
    without "split" goes to one by the hash of (seed, question): `test_fraction` of them to test, `dev_fraction` to dev,
    the others to train; no question is in two.
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
    """Write a task set as the files that `jsonl` reads: questions.jsonl, corpus.jsonl (the vdb's) and, where there
    is a web corpus, web.jsonl. Returns the paths by the name of its keyword. Existing files are replaced."""
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
    return {**row, **task.metadata, **row}  # a column of these names counts no more than what was made of it


def _passage(passage: Passage) -> dict[str, str]:
    extra = {"title": passage.title, "url": passage.url}
    return {"id": passage.id, "text": passage.text, **{key: value for key, value in extra.items() if value}}


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path
