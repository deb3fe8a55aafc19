"""A user's own questions are demonstrated by a script that searches the user's documents for their answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Message, Task
from agentgrpo.tasks.base import DemonstratedDataset, TeachingDataset
from agentgrpo.tasks.jsonl import jsonl
from agentgrpo.tasks.questions.dataset import QuestionSet
from agentgrpo.tasks.questions.demonstrating import QuestionDemonstrator
from agentgrpo.tasks.scripts import answer, call

FREQUENCY = {"which": 9, "animal": 8, "eats": 3, "the": 9, "leaves": 2, "of": 9, "eucalyptus": 1}


def reader(question: str, *references: str) -> QuestionDemonstrator:
    task = Task(
        id="q", messages=(Message(role="user", content=question),), references=references, metadata={}, data_source="q"
    )
    return QuestionDemonstrator(task, FREQUENCY)


def test_it_asks_the_question_and_reads_the_answer() -> None:
    shown = reader("Which animal eats the leaves of eucalyptus?", "the koala", "Koala")
    assert shown.next_turn([]) == call("search", query="Which animal eats the leaves of eucalyptus?")
    assert shown.next_turn(["[1] Koala: a bear\n[2] Emu: a bird"]) == answer("Koala")


def test_it_searches_once_more_for_the_rarest_words() -> None:
    shown = reader("Which animal eats the leaves of eucalyptus?", "Koala")
    assert shown.next_turn(["[1] koalas: no bears"]) == call("search", query="animal eats leaves eucalyptus")
    assert shown.next_turn(["[1] koalas: no bears", "[1] KOALA: eats leaves"]) == answer("Koala")


def test_it_has_no_answer_where_none_is_found() -> None:
    shown = reader("Which animal eats the leaves of eucalyptus?", "Koala")
    assert shown.next_turn(["nothing found", "nothing found"]) == answer("")


def own(folder: Path, corpus: bool = True) -> QuestionSet:
    rows = [
        {"question": f"Who founded Firm{i}?", **({"answers": [f"P{i}"]} if i % 2 else {}), "split": "train"}
        for i in range(8)
    ]
    rows.append({"question": "Who founded Firm9?", "answers": ["P9"], "split": "test"})
    passages = [{"id": f"p{i}", "text": f"Firm{i} was founded by P{i}."} for i in range(8)]
    for name, written in (("q.jsonl", rows), ("c.jsonl", passages)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in written))
    return jsonl(questions=str(folder / "q.jsonl"), corpus=str(folder / "c.jsonl") if corpus else None)


def test_it_shows_training_questions_that_have_an_answer(tmp_path: Path) -> None:
    dataset = own(tmp_path)
    assert isinstance(dataset, TeachingDataset)
    assert not isinstance(dataset, DemonstratedDataset)
    [world] = dataset.demonstration_worlds(1, 100)
    assert {task.references for task in world.tasks} == {("P1",), ("P3",), ("P5",), ("P7",)}
    assert all(task in dataset.split("train") for task in world.tasks)
    [fewer] = dataset.demonstration_worlds(1, 3)
    assert fewer.tasks == world.tasks[:3]
    assert world.corpora() == dataset.corpora()


def test_without_documents_nothing_can_be_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task\.corpus is not set"):
        next(own(tmp_path, corpus=False).demonstration_worlds(1, 10))
