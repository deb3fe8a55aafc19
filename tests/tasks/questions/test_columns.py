"""Every column is used, handed on as metadata, or named; a row's own id and split count in every format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from agentgrpo.core.errors import DataError
from agentgrpo.tasks.base import SPLITS
from agentgrpo.tasks.jsonl import jsonl
from agentgrpo.tasks.questions.checking import check
from agentgrpo.tasks.questions.dataset import questions
from agentgrpo.tasks.questions.formats import FORMATS
from agentgrpo.tasks.questions.intake import Filter, QuestionSource
from tests.tasks.questions.samples import GSM, HOTPOT, MUSIQUE, TRIVIA, VERL, WIKI2, lines, search_r1

SQUAD_ROW = {"question": "How is Orm?", "answers": {"text": ["old"]}, "context": "Orm is old."}
CONTEXT = {"title": ["Orm"], "sentences": [["Orm is old."]]}
FACTS = {"title": ["Orm"], "sent_id": [0]}
SHAPES: Mapping[str, dict[str, Any]] = {
    "search_r1": {"question": "Who founded Orm?", "golden_answers": ["Mara"]},
    "verl": {key: VERL[key] for key in ("prompt", "reward_model")},
    "trivia_qa": {key: TRIVIA[key] for key in ("Question", "QuestionId", "Answer")},
    "squad": SQUAD_ROW,
    "2wiki": {"question": "Who?", "answer": "Mara", "evidences": WIKI2["evidences"], "context": CONTEXT},
    "musique": {"question": "Who founded Orm?", "answer": "Mara", "answer_aliases": []},
    "hotpotqa": {"question": "Who?", "answer": "Mara", "supporting_facts": FACTS, "context": CONTEXT},
    "popqa": {"question": "What is Orm?", "possible_answers": ["a town"], "s_pop": 3},
    "bamboogle": {"Question": "Who founded Orm?", "Answer": "Mara"},
    "gsm8k": GSM,
    "nq": {"question": "when was orm founded", "answer": ["1200"]},
    "plain": {"question": "Who founded Orm?", "answers": "Mara"},
    "sharegpt": {"conversations": [{"from": "human", "value": "Where?"}]},
    "alpaca": {"instruction": "Add.", "input": "2 and 3", "output": "5"},
    "openrlhf": {"input": "Where?", "label": "here"},
}
OWN = {"difficulty": 3, "files": {"a.txt": "x"}, "tags": ["new", "old"], "shop": {"name": "Velm"}}


def write(path: Path, *rows: Mapping[str, Any], as_table: bool = False) -> str:
    if as_table:
        parquet.write_table(pyarrow.Table.from_pylist([*rows]), path)
    else:
        path.write_text(lines(*rows))
    return str(path)


def test_there_is_a_shape_of_every_format() -> None:
    assert SHAPES.keys() == FORMATS.keys()


@pytest.mark.parametrize("as_table", [False, True], ids=["lines", "parquet"])
@pytest.mark.parametrize("name", SHAPES)
def test_own_ids_splits_and_columns_in_every_format(tmp_path: Path, name: str, as_table: bool) -> None:
    asked = "QuestionId" if name == "trivia_qa" else "id"
    rows = [SHAPES[name] | {asked: f"mine-{i}", "split": split} | OWN for i, split in enumerate(("test", "validation"))]
    rows[1]["difficulty"] = 4
    path = write(tmp_path / ("q.parquet" if as_table else "q.jsonl"), *rows, as_table=as_table)
    data = jsonl(questions=path)
    read = "plain" if name == "nq" else name  # NQ's rows have two columns, and these have more
    assert data.notes[0].startswith(f"q: {path} is read as {read}; ")
    assert {s: [t.id for t in data.split(s)] for s in SPLITS} in (
        {"train": [], "dev": ["mine-1"], "test": ["mine-0"]},
        {"train": [], "dev": [], "test": ["mine-0"]},  # the same question is in one split
    )
    [task] = data.split("test")
    assert {key: task.metadata[key] for key in OWN} == OWN
    assert all(key in data.notes[0] for key in OWN)
    [note] = [text for text in check([path]).files[0].notes if "metadata" in text]
    assert data.notes[0] == f"q: {note}"


@pytest.mark.parametrize("as_table", [False, True], ids=["lines", "parquet"])
def test_rows_of_a_data_base(tmp_path: Path, as_table: bool) -> None:
    """With _id and a context of their own they are not HotpotQA."""
    row = {"_id": "m0", "question": "Who?", "context": "internal wiki", "answer": "P0", "split": "test"}
    path = write(tmp_path / ("q.parquet" if as_table else "q.jsonl"), row, as_table=as_table)
    data = jsonl(questions=path)
    [task] = data.split("test")
    assert (task.id, task.metadata) == ("m0", {"context": "internal wiki", "split": "test"})
    assert data.notes == (f"q: {path} is read as plain; metadata of its tasks: context",)


@pytest.mark.parametrize("as_table", [False, True], ids=["lines", "parquet"])
def test_large_published_columns_are_named_and_not_read(tmp_path: Path, as_table: bool) -> None:
    rows = [search_r1(0, "Mara", metadata={"level": "easy", "context": [["Orm", "old"]], "hops": 2}), HOTPOT, MUSIQUE]
    rows[1] = rows[1] | {"supporting_facts": FACTS, "context": CONTEXT}
    said = []
    for i, row in enumerate(rows):
        path = write(tmp_path / (f"{i}.parquet" if as_table else f"{i}.jsonl"), row, as_table=as_table)
        data = jsonl(questions=path, test_fraction=0, dev_fraction=0)
        said.append((data.notes[0].partition(" is read as ")[2], data.split("train")[0].metadata))
    assert [text.rpartition("; ")[2] for text, _ in said] == [
        "not read: metadata.context",
        "not read: context",
        "not read: paragraphs, question_decomposition",
    ]
    assert said[0][1]["metadata"] == {"level": "easy", "hops": 2}
    assert (said[1][1], said[2][1]) == (
        {"type": "comparison", "level": "hard", "titles": ["Orm"]},
        {"hops": 2},
    )


def test_columns_on_which_other_trainers_act_are_named(tmp_path: Path) -> None:
    row = {"prompt": "What is in <image>?", "images": ["a.png"], "tools": [], "answer": "a cat"}
    data = jsonl(questions=write(tmp_path / "q.jsonl", row), test_fraction=0, dev_fraction=0)
    [note] = data.notes
    assert note.partition(" is read as ")[2] == (
        "plain; metadata of its tasks: images, tools; without effect: images (a policy reads text), tools (tools=[...] "
        "offers tools)"
    )


def test_cells_that_json_has_not(tmp_path: Path) -> None:
    """A trajectory is JSON: dates are texts, and bytes are left out and named."""
    row = {
        "question": "Who?",
        "answer": Decimal("3.0"),
        "day": date(2026, 1, 2),
        "price": Decimal("1.50"),
        "seen": [b"x"],
    }
    data = jsonl(questions=write(tmp_path / "q.parquet", row, as_table=True), test_fraction=0, dev_fraction=0)
    [task] = data.split("train")
    assert (task.references, task.metadata) == (("3",), {"day": "2026-01-02", "price": "1.50"})
    assert data.notes[0].endswith(
        "metadata of its tasks: day, price; not read: seen (holds bytes, which is neither text nor number)"
    )
    json.dumps(task.metadata)


def test_a_column_that_only_some_rows_have_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", {"question": "a?"}, {"question": "b?", "topic": "x"})
    assert jsonl(questions=path).notes == (f"q: {path} is read as plain; metadata of its tasks: topic",)


def test_metadata_is_filtered_by_and_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    rows = [SHAPES["search_r1"] | {"question": f"{i}?", "difficulty": i % 2} for i in range(20)]
    path = write(tmp_path / "q.jsonl", *rows)
    source = QuestionSource(path=path, filter=Filter(where={"difficulty": 1}))
    data = questions(sources={"own": source})
    assert sum(len(data.split(s)) for s in SPLITS) == 10
    assert "own: 10 left out: another difficulty" in data.notes
    before = jsonl(questions=path).fingerprint
    write(tmp_path / "q.jsonl", *rows[:-1], rows[-1] | {"difficulty": 7})
    assert jsonl(questions=path).fingerprint != before


def test_a_system_message_is_part_of_the_fingerprint_and_a_split_counts_once(tmp_path: Path) -> None:
    def of(system: str, **more: str) -> str:
        chat = [{"role": "system", "content": system}, {"role": "user", "content": "Who?"}]
        return jsonl(questions=write(tmp_path / "q.jsonl", {"id": "a", "prompt": chat, **more})).fingerprint

    assert of("Be kind.", split="dev") == of("Be kind.", split="dev") != of("Be brief.", split="dev")
    assert of("Be kind.", split="dev") == of("Be kind.", split="validation") != of("Be kind.", split="test")


def test_other_answers_to_the_same_question_are_said_by_a_run_too(tmp_path: Path) -> None:
    rows = [{"question": "Who founded Velmor?", "answers": [name], "split": "train"} for name in ("Castin", "Anna")]
    path = write(tmp_path / "q.jsonl", *rows, {"question": "who founded velmor", "answers": "anna", "split": "train"})
    assert jsonl(questions=path).notes[1:] == (
        "1 questions are asked again with other answers; agentgrpo data check names them",
    )
    write(tmp_path / "q.jsonl", *rows, {"question": "Who founded Velmor?", "answers": "Ivo", "split": "test"})
    assert jsonl(questions=path).notes[1:] == ("q: 2 left out: also asked in test",)


def test_numbers_among_the_answers_are_counted(tmp_path: Path) -> None:
    answers = ["72", "-5", "1,200", "$3.50", "40 %", "1/2", ".5", 3, ["4", "four"], "B12", "3 apples", "Mara", []]
    rows = [{"question": f"{i}?", **({"answers": a} if a else {})} for i, a in enumerate(answers)]
    report = check([write(tmp_path / "q.jsonl", *rows)])
    assert report.files[0].notes[0] == "of 12 answers 8 are numbers; judge=numeric compares them as such"
    assert check([write(tmp_path / "q.jsonl", {"question": "Who?", "answers": "Mara"})]).files[0].notes == []


@pytest.mark.parametrize(("split", "place"), [("tset", "line 1"), (3, "line 1")])
def test_a_split_that_is_none_is_refused_in_published_shapes_too(tmp_path: Path, split: object, place: str) -> None:
    path = write(tmp_path / "q.jsonl", SHAPES["gsm8k"] | {"split": split})
    with pytest.raises(DataError, match=rf"{place}: 'split' is .*; train, dev, test are allowed, or leave it out"):
        jsonl(questions=path)


def test_a_training_set_lends_to_the_others_only_where_no_row_is_of_these(tmp_path: Path) -> None:
    def sizes(*splits: str) -> dict[str, int]:
        rows = [{"prompt": f"{i}?", "reward_spec": {}, "extra_info": {"split": s}} for i, s in enumerate(splits)]
        data = jsonl(questions=write(tmp_path / "q.jsonl", *rows), dev_fraction=0.3, test_fraction=0.3)
        return {name: len(data.split(name)) for name in SPLITS}

    lent = sizes(*["train"] * 40)
    assert min(lent.values()) > 3
    assert sizes(*["train"] * 40, "validation") == {"train": 40, "dev": 1, "test": 0}
    assert sizes(*["train"] * 40, "test", "test") == {"train": 40, "dev": 0, "test": 2}
