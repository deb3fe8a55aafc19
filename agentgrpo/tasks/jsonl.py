"""A user's own questions and documents, as JSON lines files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from agentgrpo.errors import ConfigError, DataError
from agentgrpo.tasks.base import SPLITS, TaskDataset, split_of
from agentgrpo.tasks.chance import uniform
from agentgrpo.tasks.files import FILES, problem_of
from agentgrpo.tasks.reading import Row, read_passages, read_rows, read_thesaurus
from agentgrpo.types import Message, Passage, Task


class JsonlTasks:
    """Questions to be answered from a corpus, and optionally from a second one ("web") that costs more; or without any,
    by an agent that does not search, or whose server has its own.

    `questions`: lines {"id", "question", "answers", "split"?, ...}; the first three can be renamed. `answers` is a
    string or a list of acceptable ones; further keys become the task's metadata ("files": {name: text} is what lies in
    the workspace of a tool agent). A row without "split" goes to one by
    the hash of (seed, id): `test_fraction` of them to test, `dev_fraction` to dev, the others to train.
    `corpus`, `web_corpus`: lines {"id", "text", "title"?, "url"?}. `thesaurus`: a JSON object {query word: [words that
    documents use instead]} for the reranker.

    Raises DataError with file, line number and reason for what cannot be read; ConfigError for bad fractions."""

    def __init__(
        self,
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
        seed: int = 0,
    ) -> None:
        if dev_fraction < 0 or test_fraction < 0 or dev_fraction + test_fraction > 1:
            raise ConfigError(
                f"dev_fraction={dev_fraction}, test_fraction={test_fraction}; both must be >= 0 and their sum <= 1"
            )
        if corpus is None and web_corpus is not None:
            raise ConfigError(f"task.web_corpus={web_corpus} without task.corpus; give both, or only task.corpus")
        self._fractions, self._seed = (test_fraction, dev_fraction), seed
        self._keys = (id_key, question_key, answers_key)
        self._splits: dict[str, list[Task]] = {name: [] for name in SPLITS}
        lines: dict[str, int] = {}
        for row in read_rows(questions, "questions"):
            task, split = self._task(row)
            if task.id in lines:
                row.refuse(f"id '{task.id}' was used in line {lines[task.id]} already; ids must be unique")
            lines[task.id] = row.line
            self._splits[split].append(task)
        if not lines:
            raise DataError(f"questions: '{questions}' has no questions; write one object per line")
        self._corpora = {} if corpus is None else {"vdb": read_passages(corpus)}
        if web_corpus is not None:
            self._corpora["web"] = read_passages(web_corpus)
        self._thesaurus = read_thesaurus(thesaurus) if thesaurus is not None else {}
        self.fingerprint = _hash_files(
            [path for path in (questions, corpus, web_corpus, thesaurus) if path is not None],
            [dev_fraction, test_fraction, seed, web_corpus is None, thesaurus is None, *self._keys],
        )

    def split(self, name: str) -> Sequence[Task]:
        return split_of(self._splits, name)

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        return self._corpora

    def thesaurus(self) -> Mapping[str, Sequence[str]]:
        return self._thesaurus

    def _task(self, row: Row) -> tuple[Task, str]:
        id_key, question_key, answers_key = self._keys
        id = row.id(id_key)
        task = Task(
            id=id,
            messages=(Message(role="user", content=row.text(question_key)),),
            references=_answers(row, answers_key),
            metadata={key: value for key, value in row.values.items() if key not in (*self._keys, "split")},
            data_source=row.path.stem,
        )
        if problem := problem_of(task.metadata.get(FILES)):
            row.refuse(problem)
        split = row.values.get("split")
        if split is None:
            u, (test, dev) = uniform("split", self._seed, id), self._fractions
            split = "test" if u < test else "dev" if u < test + dev else "train"
        elif split not in SPLITS:
            row.refuse(f"'split' is {split!r}; {', '.join(SPLITS)} are allowed, or leave it out")
        return task, split


def _answers(row: Row, key: str) -> tuple[str, ...]:
    given = row.values.get(key)
    answers = given if isinstance(given, list) else [given]
    texts = [str(a).strip() for a in answers if isinstance(a, str | int | float) and not isinstance(a, bool)]
    if len(texts) != len(answers) or not texts or not all(texts):
        row.refuse(f"'{key}' is {given!r}; it must be a non-empty string or a list of such")
    return tuple(texts)


def export(dataset: TaskDataset, folder: str | Path) -> dict[str, Path]:
    """Write a task set as the files that JsonlTasks reads: questions.jsonl, corpus.jsonl (the vdb's) and, where there
    is a web corpus, web.jsonl. Returns the paths by the name of JsonlTasks' keyword. Existing files are replaced."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"id": task.id, "question": task.question, "answers": list(task.references), "split": split, **task.metadata}
        for split in SPLITS
        for task in dataset.split(split)
    ]
    paths = {"questions": _write(folder / "questions.jsonl", rows)}
    for name, keyword, file in (("vdb", "corpus", "corpus.jsonl"), ("web", "web_corpus", "web.jsonl")):
        if name in dataset.corpora():
            paths[keyword] = _write(folder / file, [_passage(p) for p in dataset.corpora()[name]])
    return paths


def _passage(passage: Passage) -> dict[str, str]:
    extra = {"title": passage.title, "url": passage.url}
    return {"id": passage.id, "text": passage.text, **{key: value for key, value in extra.items() if value}}


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def _hash_files(paths: Sequence[str], settings: Sequence[object]) -> str:
    digest = blake2b(json.dumps(settings).encode(), digest_size=16)
    for path in paths:
        content = blake2b(Path(path).expanduser().read_bytes(), digest_size=16)
        digest.update(content.digest())
    return digest.hexdigest()
