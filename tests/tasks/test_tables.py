"""Tables larger than memory, data sets of the datasets library, and lists of JSON one element at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets.packaged_modules.parquet.parquet import Parquet
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgrpo.core.errors import DataError
from agentgrpo.tasks import records as json_list
from agentgrpo.tasks.base import SPLITS
from agentgrpo.tasks.questions.dataset import questions
from agentgrpo.tasks.questions.intake import QuestionSource
from agentgrpo.tasks.records import elements, list_of, read_records
from agentgrpo.tasks.tables import ParquetTable, is_stored, stored_parts
from tests.tasks.questions.samples import search_r1, table

TRAIN = [{"question": f"who is {i}?", "answer": [f"p{i}", "x"]} for i in range(20)]
HELD_OUT = [{"question": f"who was {i}?", "answer": [f"p{i}"]} for i in range(5)]


@pytest.fixture
def quiet() -> None:
    datasets.disable_progress_bars()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: None) -> Path:
    """The cache of the datasets library as load_dataset("acme/QuizSet", "easy") leaves it."""
    files = {"train": [table(tmp_path / "t.parquet", *TRAIN)], "validation": [table(tmp_path / "v.parquet", *HELD_OUT)]}
    root = tmp_path / "cache"
    builder = Parquet(cache_dir=str(root), dataset_name="QuizSet", config_name="easy", hash="abc", data_files=files)
    builder.download_and_prepare()
    place = root / "acme___quiz_set" / "easy" / "0.0.0" / "abc"
    place.parent.mkdir(parents=True)
    Path(builder.cache_dir).rename(place)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", root)
    return root


def test_parts_of_a_data_set_on_disk(tmp_path: Path, quiet: None) -> None:
    whole = datasets.DatasetDict(
        {"train": datasets.Dataset.from_list(TRAIN), "validation": datasets.Dataset.from_list(HELD_OUT)}
    )
    whole.save_to_disk(str(tmp_path / "set"))
    parts = stored_parts(str(tmp_path / "set"), None)
    assert [(p.name, p.split, list(p.table.rows())) for p in parts] == [
        (f"{tmp_path / 'set'}#train", "train", TRAIN),
        (f"{tmp_path / 'set'}#validation", "dev", HELD_OUT),
    ]
    [one] = stored_parts(f"{tmp_path / 'set'}#validation", None)
    assert (one.split, list(one.table.rows(["question", "answer.text", "none"]))) == (
        None,
        [{"answer": ["p0"]}, *({"answer": [f"p{i}"]} for i in range(1, 5))],
    )
    whole["train"].save_to_disk(str(tmp_path / "one"))
    [only] = stored_parts(str(tmp_path / "one"), None)
    assert (only.split, len(list(only.table.rows()))) == (None, 20)
    data = questions(sources={"s": QuestionSource(path=str(tmp_path / "set"))}, dev_fraction=0.9, test_fraction=0.0)
    assert {name: len(data.split(name)) for name in SPLITS} == {"train": 20, "dev": 5, "test": 0}


def test_names_of_the_hub_are_read_from_the_cache(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = questions(
        sources={"quiz": QuestionSource(path="acme/QuizSet#train", test_path="acme/QuizSet#validation", subset="easy")},
        dev_fraction=0.0,
    )
    assert {name: len(data.split(name)) for name in SPLITS} == {"train": 20, "dev": 0, "test": 5}
    assert data.split("test")[0].references == ("p0",)
    assert len(stored_parts("acme/QuizSet", None)) == 2
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "subset", "message"),
    [
        (
            "acme/quiz",
            None,
            "'acme/quiz' is neither a file nor in the datasets cache; fetch it: python -c",
        ),
        (
            "acme/QuizSet",
            "hard",
            r"datasets cache \(cached configurations: easy\); fetch it: .*'acme/QuizSet', 'hard'",
        ),
        ("acme/QuizSet#tst", None, "'acme/QuizSet' has train, validation, and no part 'tst'; choose one of these"),
    ],
)
def test_what_the_cache_has_not(cache: Path, name: str, subset: str | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        stored_parts(name, subset)


def test_a_name_that_could_be_two_sets(cache: Path) -> None:
    (cache / "acme___quiz_set" / "hard").mkdir()
    with pytest.raises(DataError, match="'acme/QuizSet' is in the cache as easy, hard; choose one by subset"):
        stored_parts("acme/QuizSet", None)


def test_folders_that_are_none(tmp_path: Path, quiet: None) -> None:
    with pytest.raises(
        DataError, match="is a folder without a data set; give a file, or what save_to_disk has written"
    ):
        stored_parts(str(tmp_path), None)
    datasets.Dataset.from_list(TRAIN).save_to_disk(str(tmp_path / "one"))
    with pytest.raises(DataError, match="has no parts; leave out #train"):
        stored_parts(f"{tmp_path / 'one'}#train", None)
    datasets.DatasetDict({"extra": datasets.Dataset.from_list(TRAIN)}).save_to_disk(str(tmp_path / "odd"))
    with pytest.raises(DataError, match=r"has a part 'extra', which is not a split; choose one: '.*odd#extra'"):
        stored_parts(str(tmp_path / "odd"), None)


def test_what_is_a_file_and_what_a_name(tmp_path: Path) -> None:
    assert is_stored("acme/quiz")
    assert is_stored("acme/quiz#train")
    assert is_stored(str(tmp_path))
    for file in ("data/x.jsonl", "data/x.parquet", "x.json", "quiz", "a/b/c", "/abs/quiz"):
        assert not is_stored(file)


def test_columns_of_a_parquet_file(tmp_path: Path) -> None:
    row = search_r1(1, "Mara", metadata={"level": "hard", "context": {"title": ["x"]}})
    file = ParquetTable(Path(table(tmp_path / "x.parquet", row)))
    without = ["question", "prompt", "ability", "reward_model", "extra_info", "data_source", "metadata.context", "none"]
    assert list(file.rows(without)) == [{"id": "train_1", "golden_answers": ["Mara"], "metadata": {"level": "hard"}}]
    assert list(file.rows()) == [row]


PEAK = """
import resource, sys
from pathlib import Path
from agentgrpo.tasks.malformed import Malformed
from agentgrpo.tasks.questions.intake import UsedIds, opened, parts_of
[part] = parts_of(sys.argv[1])
next(part.records(["context"], Malformed()))  # what pyarrow itself takes
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = sum(len(entry.answers) for entry in opened(part).entries(Malformed(), UsedIds()))
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("suffix", ["parquet", "json"])
@pytest.mark.slow
def test_a_large_file_takes_little_memory(tmp_path: Path, suffix: str) -> None:
    """Contexts of 60 MB, of which nothing is needed."""
    path = tmp_path / f"x.{suffix}"
    rows: list[dict[str, Any]] = [
        {
            "_id": str(i),
            "question": f"who is {i}?",
            "answer": "x",
            "supporting_facts": [["a", 0]],
            "context": [["a", [f"{i} {k} " * 100 for k in range(20)]]],
        }
        for i in range(3000)
    ]
    if suffix == "json":
        path.write_text(json.dumps(rows))
    else:
        own = [
            {**row, "supporting_facts": {"title": ["a"], "sent_id": [0]}, "context": str(row["context"])}
            for row in rows
        ]
        table(path, *own)
    assert suffix == "parquet" or path.stat().st_size > 35_000_000
    done = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True)
    count, kilobytes = map(int, done.stdout.split())
    assert count == 3000
    assert kilobytes < 25_000


# --- lists of JSON


def read(path: Path) -> list[Any]:
    return [node.value for node in read_records(path)]


@given(
    values=st.lists(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False)
            | st.text(st.characters(codec="utf-8")),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
            max_leaves=8,
        ),
        max_size=6,
    ),
    chunk=st.integers(1, 40),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
    key=st.sampled_from(["", "data", "Data"]),
)
@settings(deadline=None)  # a disk may be busy
@pytest.mark.slow
def test_elements_are_those_that_json_finds(
    tmp_path_factory: pytest.TempPathFactory,
    values: list[Any],
    chunk: int,
    indent: int | None,
    ascii_only: bool,
    key: str,
) -> None:
    path = tmp_path_factory.mktemp("list") / "x.json"
    whole = {"version": "v{[2", "n": -1.5, key: values, "after": [1]} if key else values
    path.write_text(json.dumps(whole, indent=indent, ensure_ascii=ascii_only), encoding="utf-8")
    before = json_list._CHUNK
    json_list._CHUNK = chunk
    try:
        found = list_of(path)
        assert found is not None
        assert found[0] == key
        assert list(elements(path, found[1])) == values
    finally:
        json_list._CHUNK = before


def test_what_is_no_list_is_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"question": "q", "data": [1]}\n{"question": "[", "data": []}\n', encoding="utf-8")
    assert list_of(path) is None
    assert read(path) == [{"question": "q", "data": [1]}, {"question": "[", "data": []}]
    path.write_text('\n{"question": "q", "data": [1]}\n\n', encoding="utf-8")
    assert list_of(path) == ("data", 27)
    path.write_text('{"question": "q", "answer": [1]}\n{"question": "[", "data": []}\n', encoding="utf-8")
    assert list_of(path) is None
    assert read(path) == [{"question": "q", "answer": [1]}, {"question": "[", "data": []}]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'\xef\xbb\xbf[{"a": "b"}]')
    assert read(path) == [{"a": "b"}]
    path.write_bytes(b'[{"a": "\xe9"}]')
    with pytest.raises(DataError, match=r"x\.json: not valid UTF-8 text \(.*\); save the file as UTF-8"):
        read(path)
