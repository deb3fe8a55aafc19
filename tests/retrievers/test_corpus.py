from __future__ import annotations

from pathlib import Path

import pytest

from agentgrpo.errors import DataError
from agentgrpo.retrievers.corpus import passage_of, read_corpus, searchable_text, well_formed
from agentgrpo.types import Passage


def written(tmp_path: Path, content: bytes | str) -> Path:
    path = tmp_path / "my corpus.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_both_forms_and_every_kind_of_line_end(tmp_path: Path) -> None:
    lines = [
        '\ufeff{"id": "a", "contents": "\\"Velmor\\"\\nVelmor sells tea."}\r',
        "",
        '{"id": 7, "text": "Zürich 東京\u2028one line", "title": "T", "url": "https://x.org/a", "views": 3}',
        " \t ",
        '{"id": "c", "contents": "No title.\\nTwo lines."}',
        '{"id": "d", "contents": "\\"Empty\\"\\n", "url": null}',
    ]
    assert read_corpus(written(tmp_path, "\n".join(lines))) == [
        Passage(id="a", title="Velmor", text="Velmor sells tea."),
        Passage(id="7", title="T", text="Zürich 東京\u2028one line", url="https://x.org/a"),
        Passage(id="c", text="No title.\nTwo lines."),
        Passage(id="d", title="Empty", text=""),
    ]


@pytest.mark.parametrize(
    "line, reason",
    [
        (b'{"id": "b", "text": "x"', "Expecting"),
        (b'["b", "x"]', "a JSON list, not an object"),
        (b'{"text": "x"}', "no id"),
        (b'{"id": "", "text": "x"}', "no id"),
        (b'{"id": "b"}', "no text"),
        (b'{"id": "b", "text": "  "}', "no text"),
        (b'{"id": "b", "text": ["x"]}', "text is a JSON list, not a string"),
        (b'{"id": "b", "text": "x", "title": 3}', "title is a JSON int, not a string"),
        (b'{"id": true, "text": "x"}', "id is a JSON bool, not a string or an integer"),
        (b'{"id": {"a": 1}, "text": "x"}', "id is a JSON dict"),
        (b'{"id": "b", "text": "\xff"}', "codec can't decode byte"),
        (b'{"id": "b", "text": ' + b"[" * 100_000, "recursion"),
        (b'{"id": ' + b"9" * 5000 + b', "text": "x"}', "integer string conversion"),
    ],
)
def test_a_malformed_line_is_refused_with_file_line_and_reason(tmp_path: Path, line: bytes, reason: str) -> None:
    path = written(tmp_path, b'{"id": "a", "text": "x"}\n\n' + line + b"\n")
    with pytest.raises(DataError) as e:
        read_corpus(path)
    assert str(e.value).startswith(f"corpus {path}, line 3: ")
    assert reason in str(e.value)


def test_an_id_that_comes_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    path = written(tmp_path, '{"id": 1, "text": "x"}\n\n{"id": "1", "text": "y"}\n')
    with pytest.raises(DataError, match=r"line 3: the id '1' is on line 1; ids must be unique"):
        read_corpus(path)


def test_files_that_hold_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no passage"):
        read_corpus(written(tmp_path, "\n\n"))
    with pytest.raises(DataError, match="No such file"):
        read_corpus(tmp_path / "nowhere.jsonl")
    with pytest.raises(DataError, match="Is a directory"):
        read_corpus(tmp_path)


def test_a_missing_id_becomes_the_url_or_a_hash_of_the_text() -> None:
    assert passage_of({"text": "x", "url": "https://x.org"}).id == "https://x.org"
    hashed = passage_of({"text": "x"}).id
    assert len(hashed) == 32
    assert hashed == passage_of({"contents": "x"}).id != passage_of({"text": "y"}).id


def test_lone_surrogates_become_replacement_characters_and_nothing_else_changes() -> None:
    assert well_formed("a\ud800b\udc00") == "a\ufffdb\ufffd"
    assert well_formed("\ud83d\ude42 é") == "🙂 é"
    assert passage_of({"id": "\ud800", "text": "x\udfff"}) == Passage(id="\ufffd", text="x\ufffd")


def test_searchable_text_is_title_and_text() -> None:
    assert searchable_text(Passage(id="a", title="T", text="x")) == "T\nx"
    assert searchable_text(Passage(id="a", text="x")) == "x"
