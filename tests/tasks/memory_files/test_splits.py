"""Which task is in which split, that nothing is in two of them, and that all of it repeats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.tasks.dialogue import chunks_of, questions_of
from agentgrpo.tasks.memory_files.dataset import MemoryFiles
from tests.tasks.memory_files.conftest import FIXTURES, load

SPLITS = ("train", "dev", "test")


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def chat(number: int, **more: Any) -> dict[str, Any]:
    row = {"chunks": [f"Person {number} lives in town {number}."], "questions": [{"question": "Where?", "answer": "x"}]}
    return row | more


def shared(found: dict[str, set[Any]]) -> set[Any]:
    """What is in two splits."""
    return found["train"] & found["dev"] | found["train"] & found["test"] | found["dev"] & found["test"]


def test_rows_go_by_the_hash_of_what_they_are(tmp_path: Path) -> None:
    rows = [chat(i) for i in range(2000)]
    data = MemoryFiles(path=write(tmp_path / "a.jsonl", rows))
    sizes = {name: len(data.split(name)) for name in SPLITS}
    assert sum(sizes.values()) == 2000
    assert abs(sizes["test"] - 400) < 60
    assert abs(sizes["dev"] - 200) < 45
    moved = MemoryFiles(path=write(tmp_path / "b.jsonl", rows[500:][::-1]))
    assert {t.id for t in moved.split("test")} == {t.id for t in data.split("test")} & {
        t.id for name in SPLITS for t in moved.split(name)
    }
    other = MemoryFiles(path=str(tmp_path / "a.jsonl"), seed=1)
    assert {t.id for t in other.split("test")} != {t.id for t in data.split("test")}


def test_rows_of_one_conversation_or_group_stay_together(tmp_path: Path) -> None:
    rows = [chat(i // 4, questions=[{"question": f"Where {i}?", "answer": "x"}]) for i in range(400)]
    rows += [chat(1000 + i, group=f"user {i % 50}", id=f"g{i}") for i in range(400)]
    data = MemoryFiles(path=write(tmp_path / "a.jsonl", rows))
    by_text = {name: {chunks_of(t) for t in data.split(name) if not t.id.startswith("g")} for name in SPLITS}
    by_group = {name: {int(t.id[1:]) % 50 for t in data.split(name) if t.id.startswith("g")} for name in SPLITS}
    for found in (by_text, by_group):
        assert all(found.values())
        assert shared(found) == set()
    ids = [t.id for name in SPLITS for t in data.split(name)]
    assert len(ids) == len(set(ids)) == 800


def test_a_file_that_contradicts_itself_gives_to_test(tmp_path: Path) -> None:
    rows = [
        chat(1, id="a", split="train"),
        chat(1, id="b", split="test"),
        chat(1, id="c"),
        chat(2, id="d", split="train"),
    ]
    data = MemoryFiles(path=write(tmp_path / "a.jsonl", rows))
    assert [[t.id for t in data.split(name)] for name in SPLITS] == [["d"], [], ["b", "c"]]
    assert data.left_out == {"shares a text with a document of test": 1}


def test_files_of_their_own_for_dev_and_test(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", [chat(i) for i in range(50)])
    dev, test = write(tmp_path / "dev.jsonl", [chat(98)]), write(tmp_path / "test.jsonl", [chat(99), chat(3)])
    data = MemoryFiles(path=train, dev_path=dev, test_path=test)
    assert [len(data.split(name)) for name in SPLITS] == [49, 1, 3]  # person 3 is in two files, and test is asked
    assert "Person 3 lives in town 3." in {chunks_of(t)[0] for t in data.split("test")}
    some = MemoryFiles(path=train, test_path=test)
    assert len(some.split("dev")) > 0
    assert len(some.split("test")) == 3


def hotpot(number: int, titles: list[int], supporting: list[int]) -> dict[str, Any]:
    return {
        "_id": str(number),
        "question": f"Question {number}?",
        "answer": "yes",
        "type": "bridge",
        "supporting_facts": [[f"T{t}", 0] for t in supporting],
        "context": [[f"T{t}", [f"Sentence of {t}."]] for t in titles],
    }


def test_a_paragraph_of_hotpotqa_is_in_one_split(tmp_path: Path) -> None:
    rows = [hotpot(i, [(i * 7 + j * 3) % 90 for j in range(5)], [(i * 7) % 90]) for i in range(120)]
    path = tmp_path / "hotpot.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    data = MemoryFiles(path=str(path), format="hotpotqa", chunk_words=20, max_chunks=10)
    shown = {name: {p for t in data.split(name) for c in chunks_of(t) for p in c.split("\n\n")} for name in SPLITS}
    assert all(shown.values())
    assert shared(shown) == set()
    asked = 0
    for name in SPLITS:
        for task in data.split(name):
            assert len(chunks_of(task)) <= 10
            text = "\n\n".join(chunks_of(task)).split("\n\n")
            assert len(text) == len(set(text))
            for question in questions_of(task):
                row = rows[int(question.text.removeprefix("Question ").removesuffix("?"))]
                assert f"{row['supporting_facts'][0][0]}\nSentence of {row['supporting_facts'][0][0][1:]}." in text
                asked += 1
    assert asked + data.left_out["needs a paragraph of another split"] == 120
    assert data.left_out["needs a paragraph of another split"] > 0


def test_examples_are_asked_once_and_only_where_their_label_was_shown(tmp_path: Path) -> None:
    rows = [{"text": f"text number {i}", "label": f"kind {i % 7}"} for i in range(500)]
    path = write(tmp_path / "examples.jsonl", rows)
    data = MemoryFiles(path=path, format="labels", chunk_words=40, max_chunks=4, questions_per_task=5)
    everything = []
    for name in SPLITS:
        for task in data.split(name):
            shown = dict(e.removeprefix("Text: ").split("\nLabel: ") for c in chunks_of(task) for e in c.split("\n\n"))
            asked = {q.text.rpartition("Text: ")[2]: q.answers[0] for q in questions_of(task)}
            assert len(chunks_of(task)) <= 4
            assert 1 <= len(asked) <= 5
            assert set(asked.values()) <= set(shown.values())
            assert all(int(label) == int(text.rpartition(" ")[2]) % 7 for text, label in (shown | asked).items())
            everything += [*shown, *asked]
    assert len(everything) == len(set(everything)) == 500 - data.left_out["too few examples with its label"]
    assert len(data.split("train")) > 10


def test_a_text_is_an_example_once_and_in_one_split(tmp_path: Path) -> None:
    rows = [{"text": f"Text {i % 40}" if i < 80 else f"text  {i % 40}", "label": i % 2} for i in range(120)]
    data = MemoryFiles(path=write(tmp_path / "examples.jsonl", rows), format="labels", chunk_words=500)
    found = {
        name: {
            " ".join(text.lower().split())
            for task in data.split(name)
            for text in [
                *(e.removeprefix("Text: ").partition("\n")[0] for c in chunks_of(task) for e in c.split("\n\n")),
                *(q.text.rpartition("Text: ")[2] for q in questions_of(task)),
            ]
        }
        for name in SPLITS
    }
    assert shared(found) == set()
    assert set.union(*found.values()) == {f"text {i}" for i in range(40)}
    assert data.left_out["has a text that was there before"] == 80


def test_questions_beyond_the_limit_are_chosen_by_seed(tmp_path: Path) -> None:
    asked = [{"question": f"Question {i}?", "answer": "x"} for i in range(30)]
    path = write(tmp_path / "a.jsonl", [{"id": "a", "split": "train", "chunks": ["x y"], "questions": asked}])

    def texts(**settings: Any) -> list[int]:
        [task] = MemoryFiles(path=path, **settings).split("train")
        return [int(q.text.split()[1][:-1]) for q in questions_of(task)]

    assert texts(questions_per_task=None) == list(range(30))
    first, second = texts(questions_per_task=5), texts(questions_per_task=5, seed=1)
    assert len(first) == len(second) == 5
    assert (sorted(first), sorted(second)) == (first, second)
    assert first != second


@pytest.mark.parametrize(
    ("file", "format", "contexts"),
    [
        ("chats.jsonl", "jsonl", None),
        ("squad.json", "squad", None),
        ("trec.label", "labels", None),
        ("perltqa.json", "perltqa", "perltmem.json"),
        ("personamem_questions.csv", "personamem", "personamem_contexts.jsonl"),
    ],
)
def test_equal_files_give_equal_tasks_and_fingerprints(
    tmp_path: Path, file: str, format: str, contexts: str | None
) -> None:
    more = {"contexts": str(FIXTURES / contexts)} if contexts else {}
    first, again = load(file, format, **more), load(file, format, **more)
    assert [first.split(name) for name in SPLITS] == [again.split(name) for name in SPLITS]
    assert first.fingerprint == again.fingerprint
    copy = tmp_path / file
    copy.write_bytes((FIXTURES / file).read_bytes())
    assert MemoryFiles(path=str(copy), format=format, **more).fingerprint == first.fingerprint
    changed = [
        load(file, format, **more, **other)
        for other in ({"seed": 1}, {"chunk_words": 50}, {"metric": "contains"}, {"labels": "name"}, {"max_chunks": 9})
    ]
    assert len({data.fingerprint for data in (first, *changed)}) == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "sqaud"}, r"task\.format=sqaud; jsonl, squad, .*Did you mean 'squad'\?"),
        ({"chunk_words": 0}, r"task\.chunk_words=0; it must be at least 1"),
        ({"max_chunks": 0}, r"task\.max_chunks=0; it must be at least 1"),
        ({"questions_per_task": 0}, r"task\.questions_per_task=0; it must be at least 1"),
        ({"dev_fraction": 0.5, "test_fraction": 0.6}, r"task\.dev_fraction=0\.5, task\.test_fraction=0\.6; both"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("chats.jsonl", **settings)


def test_there_are_three_splits() -> None:
    with pytest.raises(DataError, match=r"split 'tset'; this task set has train, dev, test\. Did you mean 'test'\?"):
        load("chats.jsonl").split("tset")
