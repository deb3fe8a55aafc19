"""Memories as files: whole ones come back, others are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.durable import Operation, injected
from agentgrpo.core.errors import DataError, StorageError
from agentgrpo.environments.memory.store import Memory
from tests.environments.memory.calls import delete, insert, kept, memory, words


def test_a_round_trip_keeps_all() -> None:
    m = kept()
    again = Memory.from_json(json.loads(json.dumps(m.to_json())), words)
    assert again == m
    assert (again.entries, again.core, again.history, again.num_tokens, again.passages()) == (
        *(m.entries, m.core, m.history, m.num_tokens, m.passages()),
    )
    for one in (m, again):
        insert(one, "semantic", "next", 5)
        insert(one, "episodic", "next", 5)
    assert [e.id for e in again.entries] == ["s1", "s2", "s3", "e2"]
    assert again == m


def test_other_histories_are_other_memories() -> None:
    one, other = memory("three_part"), memory("three_part")
    insert(one, "semantic", "a")
    insert(other, "semantic", "a")
    assert one == other
    insert(other, "semantic", "b")
    delete(other, "semantic", "s2")
    assert one.entries == other.entries
    assert one != other
    assert memory("three_part") != memory("nine_part")
    assert memory("three_part") != ()


def test_what_the_json_is() -> None:
    m = memory("three_part")
    insert(m, "semantic", "é", 2)
    written = {"id": "s1", "kind": "semantic", "text": "é", "chunk": 2}
    assert m.to_json() == {
        "version": 1,
        "schema": "three_part",
        "core": None,
        "entries": [written],
        "history": [{"op": "insert", "chunk": 2, "before": None, "after": written}],
    }


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "new" / "memory.json"
    m = kept()
    m.save(path)
    assert Memory.load(str(path), words) == m
    insert(m, "semantic", "é \U0001f600", 5)
    m.save(str(path))
    assert Memory.load(path, words) == m
    assert [p.name for p in path.parent.iterdir()] == ["memory.json"]


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    def full(operation: Operation) -> None:
        if operation.kind == "rename":
            raise OSError(28, "No space left on device")

    path = tmp_path / "memory.json"
    memory("keyed").save(path)
    with injected(full), pytest.raises(StorageError):
        kept().save(path)
    assert Memory.load(path, words) == memory("keyed")
    assert [p.name for p in tmp_path.iterdir()] == ["memory.json"]


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"version": ' + b"1" * 5000 + b"}"])
def test_files_that_are_no_json(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "memory.json"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"memory '.*memory.json' is not JSON: .*; give the path of a file that Memory"):
        Memory.load(path, words)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"memory '.*none.json': No such file or directory; give the path of a file"):
        Memory.load(tmp_path / "none.json", words)
    with pytest.raises(DataError, match="Is a directory"):
        Memory.load(tmp_path, words)


ABSENT = object()


@pytest.mark.parametrize(
    "path, value, says",
    [
        ((), [], "it is not a memory; a JSON object with core, entries, history, schema, version is needed"),
        (("history",), ABSENT, "it is not a memory; a JSON object with"),
        (("more",), 1, "it is not a memory; a JSON object with"),
        (("version",), 2, "its version is not 1, which is what this program reads and writes"),
        (("version",), True, "its version is not 1"),
        (
            ("schema",),
            "four_part",
            "it has the schema 'four_part'; allowed are three_part, nine_part, mem_alpha, keyed",
        ),
        (("schema",), ["keyed"], "it has the schema a list; allowed are"),
        (("schema",), "keyed", "core of kind 'core': schema keyed has none"),
        (("schema",), "nine_part", "insert of kind 'semantic': schema nine_part has none"),
        (("history",), {}, "its history is not a list"),
        (("history", 1), None, "change 2 is not an object with op, chunk, before, after"),
        (("history", 1, "op"), "skip", "change 2: op 'skip'; allowed are insert, update, delete, core"),
        (("history", 1, "op"), ["insert"], "change 2: op a list; allowed"),
        (("history", 1, "op"), "update", "change 2: update needs before"),
        (("history", 1, "op"), "core", "core of kind 'semantic': schema three_part has none"),
        (("history", 0, "op"), "insert", "insert of kind 'core': schema three_part has none"),
        (("history", 1, "after"), None, "change 2: insert needs after"),
        (("history", 0, "after"), None, "change 1: core needs before or after"),
        (("history", 6, "op"), "core", "core of kind 'episodic': schema three_part has none"),
        (("history", 3, "op"), "insert", "change 4: insert has no before"),
        (("history", 3, "op"), "delete", "change 4: delete has no after"),
        (("history", 1, "chunk"), -1, "change 2: its chunk is not a whole number from 0"),
        (("history", 1, "chunk"), "0", "change 2: its chunk is not a whole number from 0"),
        (("history", 1, "chunk"), True, "change 2: its chunk is not a whole number from 0"),
        (("history", 1, "chunk"), 3, "change 2 does not follow from those before it"),
        (("history", 1, "after", "chunk"), 1.0, "change 2, after: its chunk is not a whole number from 0"),
        (("history", 1, "after", "id"), "s7", "change 2 does not follow from those before it"),
        (("history", 1, "after", "id"), 1, "change 2, after: its id is not one line of text"),
        (("history", 1, "after", "text"), "a\nb", "change 2, after: its text is not one line of text"),
        (("history", 1, "after", "text"), "", "change 2, after: its text is not one line of text"),
        (("history", 1, "after", "text"), "\ud800", "change 2, after: its text is not one line of text"),
        (("history", 1, "after", "kind"), "social", "insert of kind 'social': schema three_part has none"),
        (("history", 1, "after", "more"), "x", "change 2, after is not an object with id, kind, text, chunk"),
        (("history", 3, "before", "text"), "Ada bakes pies", "change 4 does not follow from those before it"),
        (("history", 3, "before", "id"), "s9", "change 4 cannot have happened: semantic has no entry 's9'"),
        (("history", 3, "after", "text"), "Ada bakes bread", "change 4 cannot have happened: the entry 's1' has"),
        (("history", 4, "before"), None, "change 5 does not follow from those before it"),
        (("history", 4, "after", "text"), "Ada, a baker", "change 5 cannot have happened: the core paragraph has"),
        (("history", 5), ABSENT, "its entries and its history disagree: the file was changed by hand"),
        (("entries", 0, "text"), "Ada bakes pies", "its entries and its history disagree"),
        (("entries",), None, "its entries and its history disagree"),
        (("core",), None, "its core and its history disagree: the file was changed by hand"),
    ],
)
def test_a_file_that_no_calls_can_have_led_to(tmp_path: Path, path: tuple[Any, ...], value: Any, says: str) -> None:
    whole = {"": kept().to_json()}
    *way, last = ("", *path)
    place: Any = whole
    for step in way:
        place = place[step]
    if value is ABSENT:
        del place[last]
    else:
        place[last] = value
    file = tmp_path / "memory.json"
    file.write_text(json.dumps(whole[""]), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        Memory.load(file, words)
    assert str(caught.value).startswith(f"memory '{file}': {says}")


def test_limits_hold_for_what_a_loaded_memory_holds_now() -> None:
    value = kept().to_json()
    assert Memory.from_json(value, words, core_tokens=4, entry_tokens=4) == kept()
    with pytest.raises(
        DataError, match=r"memory: the entry core is over its limit: the text has 4 tokens; .* at most 3"
    ):
        Memory.from_json(value, words, core_tokens=3)
    with pytest.raises(DataError, match=r"the entry s2 is over its limit: .*; or raise the limit"):
        Memory.from_json(value, words, entry_tokens=3)


def test_a_loaded_memory_is_counted_with_the_tokenizer_given() -> None:
    assert kept().num_tokens == 4 + 3 + 4
    assert Memory.from_json(kept().to_json(), len).num_tokens == sum(len(p.text) for p in kept().passages())
