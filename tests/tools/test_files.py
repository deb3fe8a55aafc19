"""The tools over the workspace, by whole answers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Outcome
from agentgrpo.tools.base import ToolResult
from agentgrpo.tools.files import Files
from tests.thorough import examples
from tests.tools.places import Place

PRICES = "verdren 44\nlomel see imports\ntarvek 12\nbrint 9\nsolum 71\n"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "prices.txt").write_text(PRICES)
    (tmp_path / "imports.txt").write_text("lomel\t51\n\nkey with blanks\t a b \nlomel 52\n")
    (tmp_path / "stock.csv").write_text('item,price,stock\nverdren,44,7\nlomel,51,"3, or 4"\nlomel,0,0\nbare\n')
    (tmp_path / "pairs.csv").write_text("item,price\nverdren, 44\n")
    (tmp_path / "rates.json").write_text(
        '{"a": 1.5, "b": {"c": [1, "é"]}, "d": "see imports", "e": null, "f": "\\ud800"}'
    )
    return Place(tmp_path)


def call(place: Place, name: str, arguments: dict[str, Any], **keys: Any) -> ToolResult:
    tool = next(t for t in Files(**keys).tools if t.spec.name == name)
    return asyncio.run(tool.call(arguments, place))


def test_read_file(place: Place) -> None:
    def read(path: str, **keys: Any) -> ToolResult:
        return call(place, "read_file", {"path": path}, **keys)

    assert read("prices.txt") == ToolResult.ok(PRICES.rstrip("\n"))
    assert read("prices.txt", max_lines=3) == ToolResult.ok("verdren 44\nlomel see imports\ntarvek 12\n...")
    assert read("prices.txt", max_lines=5) == ToolResult.ok(PRICES.rstrip("\n"))
    assert read("prices.txt", max_bytes=13) == ToolResult.ok("verdren 44\nlo\n...")
    assert read("price.txt") == ToolResult.failed(
        "no file price.txt; there are imports.txt, pairs.csv, prices.txt, rates.json, stock.csv"
    )
    assert read("sub/price.txt") == ToolResult.failed("no file sub/price.txt")
    assert read("../prices.txt") == ToolResult.refused("../prices.txt has .. in it; paths stay in the workspace")
    (place.path / "bytes").write_bytes(b"a\0b")
    (place.path / "latin").write_bytes(b"caf\xe9")
    (place.path / "empty").write_bytes(b"")
    assert [read(p) for p in ("bytes", "latin", "empty")] == [
        ToolResult.failed("bytes is no text"),
        ToolResult.ok("caf\ufffd"),
        ToolResult.ok(""),
    ]


def test_write_file(place: Place) -> None:
    def write(path: str, content: str, **keys: Any) -> ToolResult:
        return call(place, "write_file", {"path": path, "content": content}, **keys)

    assert write("out/a.txt", "h\u00e9llo\n") == ToolResult.ok("7 bytes written to out/a.txt")
    assert write(" ./out//a.txt", "again") == ToolResult.ok("5 bytes written to out/a.txt")
    assert (place.path / "out" / "a.txt").read_text() == "again"
    assert write("b", "12345", max_bytes=4) == ToolResult.refused("5 bytes; a file has at most 4")
    assert write("c", "\ud800") == ToolResult.ok("1 bytes written to c")
    assert write("/etc/new", "") == ToolResult.refused("/etc/new is absolute; paths are relative to the workspace")
    assert write("d", "", max_files=8) == ToolResult.failed("the workspace is full: at most 8 files")
    assert not (place.path / "b").exists()
    assert not (place.path / "d").exists()


def test_list_files(place: Place) -> None:
    (place.path / "sub").mkdir()
    os.mkfifo(place.path / "pipe")
    (place.path / "line\nbreak").write_text("")
    rows = ["imports.txt 41", "'line\\nbreak' 0", "pairs.csv 23", "pipe (no file)", "prices.txt 56", "rates.json 79"]
    assert call(place, "list_files", {}) == ToolResult.ok("\n".join([*rows, "stock.csv 64", "sub/"]))
    assert call(place, "list_files", {"path": "sub"}) == ToolResult.ok("no files")
    assert call(place, "list_files", {"path": "."}, max_files=7) == ToolResult.failed(". holds more than 7 files")
    assert call(place, "list_files", {"path": ".."}).outcome is Outcome.INVALID_ARGS


def test_lookup(place: Place) -> None:
    def look_up(table: str, key: str, **keys: Any) -> ToolResult:
        return call(place, "lookup", {"table": table, "key": key}, **keys)

    known = {
        ("prices", " verdren"): "44",
        (" prices", "tarvek"): "12",
        ("imports", "lomel"): "51",
        ("imports", "key with blanks"): "a b",
        ("stock", "lomel"): "price=51, stock=3, or 4",
        ("stock", "bare"): "",
        ("pairs", "verdren"): "44",
        ("rates", "a"): "1.5",
        ("rates", "b"): '{"c": [1, "\u00e9"]}',
        ("rates", "e"): "null",
        ("rates", "f"): "?",
    }
    assert {k: look_up(*k) for k in known} == {k: ToolResult.ok(v) for k, v in known.items()}
    unknown = {
        ("prices", "verdrens"): "unknown key verdrens",
        ("prices", "Verdren"): "unknown key Verdren",
        ("prices", ""): "unknown key ",
        ("stock", "item"): "unknown key item",
        ("prices", "lomel"): "lomel is in imports",
        ("rates", "d"): "d is in imports",
        ("weights", "verdren"): "no table weights; there are imports, pairs, prices, rates, stock",
        ("prices.txt", "verdren"): "no table prices.txt; there are imports, pairs, prices, rates, stock",
    }
    assert {k: look_up(*k) for k in unknown} == {k: ToolResult.failed(v) for k, v in unknown.items()}
    assert look_up("../prices", "verdren") == ToolResult.refused("../prices is no name of a table")
    assert look_up("prices", "verdren", max_bytes=20) == (
        ToolResult.failed("table prices is too large: more than 20 bytes")
    )


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("t.json", "[1]", "it is no mapping of keys to values"),
        ("t.json", "{", "JSONDecodeError"),
        ("t.json", "[" * 60_000, "RecursionError"),
        ("t.json", '{"a": ' + "9" * 5000 + "}", "ValueError"),
        ("t.csv", "a,b\n" + "x" * 140_000 + "\n", "field larger than field limit (131072)"),
    ],
)
def test_a_table_that_cannot_be_read(tmp_path: Path, name: str, text: str, why: str) -> None:
    (tmp_path / name).write_text(text)
    assert call(Place(tmp_path), "lookup", {"table": "t", "key": "a"}, max_bytes=200_000) == (
        ToolResult.failed(f"table t cannot be read: {why}")
    )


def test_a_workspace_without_tables(tmp_path: Path) -> None:
    (tmp_path / ".txt").write_text("a 1")
    (tmp_path / "folder.txt").mkdir()
    assert call(Place(tmp_path), "lookup", {"table": "t", "key": "a"}) == ToolResult.failed(
        "no table t; there are none"
    )
    assert call(Place(tmp_path), "read_file", {"path": "sub/x"}) == ToolResult.failed("no file sub/x")


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(suffix=st.sampled_from(["txt", "csv", "json"]), content=st.binary(max_size=200), key=st.text(max_size=5))
def test_any_table_has_a_typed_answer(tmp_path: Path, suffix: str, content: bytes, key: str) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    (tmp_path / f"t.{suffix}").write_bytes(content)
    result = call(Place(tmp_path), "lookup", {"table": "t", "key": key})
    assert result.outcome in (Outcome.SUCCESS, Outcome.RUNTIME_ERROR)
    assert result.text.encode("utf-8").decode("utf-8") == result.text


def test_which_tools_are_offered() -> None:
    assert [t.spec.name for t in Files().tools] == ["read_file", "write_file", "list_files", "lookup"]
    assert [t.spec.name for t in Files(offered=("lookup", "read_file", "lookup")).tools] == ["lookup", "read_file"]
    assert all(t.exclusive for t in Files().tools)
    with pytest.raises(ConfigError, match="no tool delete; there are read_file, write_file, list_files, lookup"):
        Files(offered=("delete",))
    with pytest.raises(ConfigError, match="max_lines=0"):
        Files(max_lines=0)
