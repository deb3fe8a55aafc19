"""Files as spreadsheets, packers and other systems write them: the same rows, or a line that says what is wrong."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from agentgrpo.core.errors import DataError
from agentgrpo.core.types import Task
from agentgrpo.tasks.base import SPLITS
from agentgrpo.tasks.jsonl import jsonl
from agentgrpo.tasks.records import Node, read_passages, read_records, written

ROWS = [{"id": "q1", "question": "Wer gründete Velmor?", "answers": "Müller"}, {"id": "q2", "question": "Wo?"}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
TABLE = "id,question,answers\nq1,Wer gründete Velmor?,Müller\nq2,Wo?,\n"


def tasks_of(path: Path) -> list[Task]:
    data = jsonl(questions=str(path))
    return sorted((task for split in SPLITS for task in data.split(split)), key=lambda task: task.id)


FILES: list[tuple[str, bytes]] = [
    ("q.CSV", TABLE.encode()),
    ("q.JSONL", LINES.encode()),
    ("q.Json", json.dumps(ROWS).encode()),
    ("excel.csv", b"\xef\xbb\xbf" + ("sep=;\n" + TABLE.replace(",", ";")).replace("\n", "\r\n").encode()),
    ("quoted.csv", ('"sep=|"\n' + TABLE.replace(",", "|")).encode()),
    ("pipes.csv", TABLE.replace(",", "|").encode()),
    ("blanks.csv", TABLE.replace("id,question,answers", " id, question ,answers").encode()),
    ("mac.jsonl", LINES.replace("\n", "\r").encode()),
    ("mac.csv", TABLE.replace("\n", "\r").encode()),
    ("windows.jsonl", LINES.replace("\n", "\r\n").encode()),
    ("q.jsonl.gz", gzip.compress(LINES.encode())),
    ("q.JSON.GZ", gzip.compress(json.dumps(ROWS).encode())),
    ("q.csv.gz", gzip.compress(TABLE.encode())),
    ("q.tsv.bz2", bz2.compress(TABLE.replace(",", "\t").encode())),
    ("q.jsonl.xz", lzma.compress(LINES.encode())),
]


@pytest.mark.parametrize(("name", "content"), FILES, ids=[name for name, _ in FILES])
def test_the_same_rows_in_every_file(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert [(t.id, t.question, t.references, t.metadata) for t in tasks_of(tmp_path / name)] == [
        ("q1", "Wer gründete Velmor?", ("Müller",), {}),
        ("q2", "Wo?", (), {}),
    ]
    assert {task.data_source for task in tasks_of(tmp_path / name)} == {name.partition(".")[0]}


def test_a_column_without_a_name_gets_one(tmp_path: Path) -> None:
    """As data frames write their index."""
    (tmp_path / "q.csv").write_text(",question,answers\n0,Who?,Mara\n")
    [task] = tasks_of(tmp_path / "q.csv")
    assert task.metadata == {"column 1": "0"}


def test_a_packed_corpus(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b'{"id": "p1", "text": "Orm is old."}\n'))
    assert [p.text for p in read_passages(tmp_path / "c.jsonl.gz")] == ["Orm is old."]


UNREADABLE: list[tuple[str, bytes, str]] = [
    ("cut.jsonl.gz", gzip.compress(LINES.encode())[:-12], r"cannot be unpacked \(.*\); is this the whole file\?"),
    ("cut.csv.gz", gzip.compress(TABLE.encode())[:-12], r"cannot be unpacked \(.*\); is this the whole file\?"),
    ("no.jsonl.gz", LINES.encode(), r"cannot be unpacked \(Not a gzipped file"),
    ("q.xlsx", b"PK\x03\x04", r"'.*q\.xlsx' is a \.xlsx file; save it as JSON lines, CSV or parquet"),
    ("twice.csv", b"id,question,answers,question\n1,a?,b,c?\n", r"line 1: the header has 'question' twice; rename one"),
    ("open.csv", b'question,answers\nWho?,"Mara\nHow?,well\n', r"line 3: not readable as CSV \(unexpected end of data"),
    ("sep.csv", b"sep=;\nid;question\n1;Who?;x\n", r"line 3: not 2 columns as the header has"),
    ("mac.jsonl", b'{"question": "a?"}\r{"question": }\r', r"line 2: not valid JSON"),
]


@pytest.mark.parametrize(("name", "content", "reason"), UNREADABLE, ids=[name for name, _, _ in UNREADABLE])
def test_what_cannot_be_read_is_said_with_its_place(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=reason) as refusal:
        tasks_of(tmp_path / name)
    assert name in str(refusal.value)


def test_a_cell_may_be_long(tmp_path: Path) -> None:
    """The csv module's limit is the process's: it is never lowered again."""
    before = csv.field_size_limit(1000)
    try:
        (tmp_path / "q.csv").write_text(f"question,answers,notes\nWho?,Mara,{'a' * 150_000}\n")
        [task] = tasks_of(tmp_path / "q.csv")
        assert len(task.metadata["notes"]) == 150_000
        assert csv.field_size_limit() > 150_000
        (tmp_path / "short.csv").write_text("question\nWho?\n")
        assert len(tasks_of(tmp_path / "short.csv")) == 1
        assert csv.field_size_limit() > 150_000
    finally:
        csv.field_size_limit(before)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (72.0, "72"),
        (-3.0, "-3"),
        (-0.0, "0"),
        (3.14, "3.14"),
        (1e21, "1" + 21 * "0"),
        (1e22, "1e+22"),
        (1e-7, "1e-07"),
        (2**70, str(2**70)),
        (Decimal("72.00"), "72"),
        (Decimal("12.50"), "12.50"),
    ],
)
def test_a_whole_number_is_written_as_one(number: object, text: str) -> None:
    assert written(number) == text


@pytest.mark.parametrize(
    ("answer", "references"),
    [
        (72.0, ("72",)),
        ([3, 3.5], ("3", "3.5")),
        (True, ("yes", "true")),
        ([False], ("no", "false")),
        (0, ("0",)),
        ("72.0", ("72.0",)),
    ],
)
def test_answers_of_every_kind(answer: Any, references: tuple[str, ...]) -> None:
    assert Node(Path("x"), "", {"answers": answer}).answers("answers") == references


def by_pandas(path: Path, answers: list[float | None], ids: list[float | None]) -> None:
    """A column of whole numbers with an empty cell, as data frames write it."""
    rows = [["" if cell is None else cell for cell in row] for row in zip(ids, answers, strict=True)]
    path.write_text("id,question,answers\n" + "".join(f"{a},How many {i}?,{b}\n" for i, (a, b) in enumerate(rows)))


def by_arrow(path: Path, answers: list[float | None], ids: list[float | None]) -> None:
    columns = {"id": ids, "question": [f"How many {i}?" for i in range(len(ids))], "answers": answers}
    parquet.write_table(pyarrow.table(columns), path)


@pytest.mark.parametrize(("name", "write"), [("q.csv", by_pandas), ("q.parquet", by_arrow)])
def test_one_empty_cell_makes_no_floats_of_whole_numbers(
    tmp_path: Path, name: str, write: Callable[[Path, list[float | None], list[float | None]], None]
) -> None:
    write(tmp_path / name, [3.0, None, 1.5], [1.0, 2.0, 7.0])
    assert [(t.id, t.references) for t in tasks_of(tmp_path / name)] == [("1", ("3",)), ("2", ()), ("7", ("1.5",))]


def test_splits_may_be_called_as_hubs_call_them(tmp_path: Path) -> None:
    rows = [{"question": f"{name}?", "split": name} for name in ("train", "validation", "Val", "dev", "test")]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = jsonl(questions=str(tmp_path / "q.jsonl"))
    assert {name: [t.question for t in data.split(name)] for name in SPLITS} == {
        "train": ["train?"],
        "dev": ["validation?", "Val?", "dev?"],
        "test": ["test?"],
    }


def test_rows_come_one_at_a_time_from_a_packed_list(tmp_path: Path) -> None:
    """An error in the last element does not keep the first from being read."""
    (tmp_path / "q.json.gz").write_bytes(gzip.compress(b'[{"question": "a?"}, {"question": ]'))
    rows = read_records(tmp_path / "q.json.gz")
    assert next(rows).object() == {"question": "a?"}
    with pytest.raises(DataError, match=r"line 1, column 35: not valid JSON"):
        next(rows)
