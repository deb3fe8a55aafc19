"""A corpus on disk: plain, gzipped, and damaged in every way."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from agentgrpo.core.errors import DataError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.corpus import CorpusFile

LINES = (
    b'{"id": "1", "contents": "\\"T\\"\\ntext"}\n\n  \r\n'
    b'{"text": "\xc3\xa9", "url": "http://a", "id": 7, "more": 1}\r\n'
    b'{"id": "x", "text": "last", "title": "U"}'
)
PASSAGES = [
    Passage(id="1", title="T", text="text"),
    Passage(id="7", text="é", url="http://a"),
    Passage(id="x", title="U", text="last"),
]


def read(path: Path) -> list[Passage]:
    with CorpusFile(path) as corpus:
        return list(corpus.passages())


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as e:
        read(path)
    return str(e.value)


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz", "no suffix at all"])
def test_plain_and_gzipped_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(LINES) if name.endswith("gz") else LINES)
    assert read(path) == PASSAGES
    path.write_bytes(LINES if name.endswith("gz") else gzip.compress(LINES[:50]) + gzip.compress(LINES[50:]))
    assert read(path) == PASSAGES


def test_how_far_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(LINES)
    with CorpusFile(path) as corpus:
        assert (corpus.position, corpus.size, corpus.line) == (0, len(LINES), 0)
        passages = corpus.passages()
        next(passages)
        next(passages)
        assert (corpus.position, corpus.line) == (LINES.index(b'{"id": "x"'), 4)
        assert list(passages) == PASSAGES[2:]
        assert corpus.position == corpus.size


GOOD = b'{"id": "1", "text": "a"}\n'
FORMS = '; a line is {"id", "contents"} or {"id", "text", "title"?, "url"?}'
MALFORMED: dict[str, tuple[bytes, str]] = {
    "no JSON": (
        GOOD + b"\n{'id': 1}",
        f", line 3: Expecting property name enclosed in double quotes: line 1 column 2 (char 1){FORMS}",
    ),
    "a list": (GOOD + b'["text"]', f", line 2: a JSON list, not an object{FORMS}"),
    "no text": (b'{"id": "1"}', f", line 1: no text (or contents){FORMS}"),
    "text of another kind": (b'{"text": 1}', f", line 1: text is a JSON int, not a string{FORMS}"),
    "an id of another kind": (
        b'{"id": [], "text": "a"}',
        f", line 1: id is a JSON list, not a string or an integer{FORMS}",
    ),
    "no UTF-8": (GOOD + b'{"text": "\xff"}', ", line 2: 'utf-8' codec can't decode byte 0xff in position 10: "),
    "too deep": (b"[" * 20_000, ", line 1: maximum recursion depth exceeded"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_line_says_where_and_why(tmp_path: Path, name: str) -> None:
    path = tmp_path / "odd 'name' ü.jsonl"
    content, message = MALFORMED[name]
    path.write_bytes(content)
    assert refusal(path).startswith(f"{path}{message}")


def test_files_that_are_damaged_missing_or_none(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b'{"text": "%d"}\n' % i for i in range(999)))
    path = tmp_path / "c.gz"
    path.write_bytes(whole[:-900])
    assert (
        "Compressed file ended before the end-of-stream marker was reached; the file is damaged or was cut"
        in refusal(path)
    )
    path.write_bytes(whole[:100] + b"\0" * 100 + whole[200:])
    assert "; the file is damaged or was cut off: fetch it again" in refusal(path)
    assert refusal(tmp_path / "none") == (
        f"{tmp_path / 'none'} cannot be read: No such file or directory; give a file of JSON lines, plain or gzipped"
    )
    assert refusal(tmp_path) == (
        f"{tmp_path} cannot be read: Is a directory; give a file of JSON lines, plain or gzipped"
    )


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgrpo.retrieval.corpus.MAX_LINE_BYTES", 2**20)
    path = tmp_path / "c"
    path.write_bytes(GOOD + b"x" * 2**20)
    assert refusal(path) == f"{path}, line 2: longer than 1 MiB; a passage a line is allowed"


@pytest.mark.parametrize("gz", [False, True])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, gz: bool) -> None:
    path = tmp_path / "c"
    lines = b"".join(json.dumps({"id": str(i), "text": "word " * 100}).encode() + b"\n" for i in range(20_000))
    path.write_bytes(gzip.compress(lines, 1) if gz else lines)
    tracemalloc.start()
    with CorpusFile(path) as corpus:
        number = sum(1 for _ in corpus.passages())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert number == 20_000
    assert peak < len(lines) / 20
