"""The tools `read_file`, `write_file`, `list_files` and `lookup` for the files of the episode's workspace."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.tools.base import ToolResult, Workspace
from agentgrpo.tools.directory import (
    DirectoryEntry,
    FileMissing,
    FileProblem,
    PathRefused,
    list_within,
    parts_of,
    read_within,
    shown,
    write_within,
)

# --- Tables in the files of a workspace: look up a value by its key.
#
# prices.txt     verdren 44            the rest of the line is the value; a tab may replace the blank
#                lomel see imports     an error entry: the value is in another table
# prices.csv     first row = names of the columns, first column = key
# prices.json    {"verdren": 44, ...}

SUFFIXES = (".txt", ".csv", ".json")
_SEE = re.compile(r"see (\S+)")


def look_up(workspace: Path, table: str, key: str, *, max_bytes: int, max_entries: int) -> str:
    """Return the value; white space around table and key is ignored. Raises FileProblem for an unknown table or key,
    and if the value is in another table; PathRefused if the table name is a path."""
    table, key = table.strip(), key.strip()
    if "/" in table or "\0" in table:
        raise PathRefused(f"{shown(table)} is no name of a table")
    names = [e.name for e in list_within(workspace, ".", max_entries=max_entries) if e.num_bytes is not None]
    tables = {n.removesuffix(s): n for s in reversed(SUFFIXES) for n in names if n.endswith(s) and n != s}
    if table not in tables:
        raise FileProblem(f"no table {shown(table)}; there are {', '.join(shown(t) for t in sorted(tables)) or 'none'}")
    content, more = read_within(workspace, tables[table], max_bytes=max_bytes)
    if more:
        raise FileProblem(f"table {table} is too large: more than {max_bytes} bytes")
    value = _READERS[Path(tables[table]).suffix](table, content.decode("utf-8", "replace")).get(key)
    if value is None:
        raise FileProblem(f"unknown key {shown(key)}")
    if elsewhere := _SEE.fullmatch(value):
        raise FileProblem(f"{shown(key)} is in {elsewhere[1]}")
    return value.encode("utf-8", "replace").decode("utf-8")


def _from_lines(table: str, text: str) -> dict[str, str]:
    rows: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.strip().partition("\t" if "\t" in line else " ")
        if key:
            rows.setdefault(key.strip(), value.strip())
    return rows


def _from_csv(table: str, text: str) -> dict[str, str]:
    try:
        header, *lines = list(csv.reader(text.splitlines())) or [[]]
    except csv.Error as e:
        raise FileProblem(f"table {table} cannot be read: {e}") from e
    rows: dict[str, str] = {}
    for line in lines:
        cells = [cell.strip() for cell in line]
        named = [f"{n.strip()}={c}" for n, c in zip(header[1:], cells[1:], strict=False)]
        if cells:
            rows.setdefault(cells[0], cells[1] if len(cells) == 2 else ", ".join(named))
    return rows


def _from_json(table: str, text: str) -> dict[str, str]:
    try:
        rows: Any = json.loads(text)
        if isinstance(rows, dict):
            return {k.strip(): v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in rows.items()}
    except (ValueError, RecursionError) as e:
        raise FileProblem(f"table {table} cannot be read: {type(e).__name__}") from e
    raise FileProblem(f"table {table} cannot be read: it is no mapping of keys to values")


_READERS = {".txt": _from_lines, ".csv": _from_csv, ".json": _from_json}


MORE = "..."
"""Last line of the output when the rest of the file is not shown."""
Run = Callable[[Mapping[str, Any], Workspace], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTool:
    """Runs synchronously on the event loop's thread: it never waits, so a call needs no cancelling."""

    spec: ToolSpec
    run: Run
    exclusive: bool = True
    """Keeps the policy's order: a read that follows a write sees the written file."""

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        try:
            return ToolResult.ok(self.run(arguments, workspace))
        except PathRefused as e:
            return ToolResult.refused(str(e))
        except FileProblem as e:
            return ToolResult.failed(str(e))

    async def close(self) -> None:
        pass


class Files:
    """Toolset over the workspace. A forbidden path -> invalid_args; a missing file, a link, a pipe, a file that is too
    large or an unknown key -> runtime_error."""

    def __init__(
        self,
        *,
        offered: tuple[str, ...] = ("read_file", "write_file", "list_files", "lookup"),
        max_bytes: int = 65536,
        max_files: int = 100,
        max_lines: int | None = None,
    ) -> None:
        """offered: names of the tools that the policy gets; without write_file the workspace is read-only. max_bytes:
        size limit of one file. max_files: files and folders allowed in the workspace when a file is written, and in a
        folder when it is listed. max_lines: lines of a file that read_file shows; null = all. Raises ConfigError."""
        if max_bytes < 1 or max_files < 1 or (max_lines is not None and max_lines < 1):
            raise ConfigError(
                f"files: max_bytes={max_bytes}, max_files={max_files}, max_lines={max_lines}; use 1 or more"
            )
        self._max_bytes, self._max_files, self._max_lines = max_bytes, max_files, max_lines
        known = {
            tool.spec.name: tool
            for tool in (
                _tool("read_file", "Shows a text file of the workspace.", self._read, path=_PATH),
                _tool("write_file", "Writes a text file of the workspace.", self._write, path=_PATH, content=_CONTENT),
                _tool("list_files", "Lists a folder of the workspace.", self._list, path=_FOLDER, needed=()),
                _tool("lookup", "Looks up one key in a table of the workspace.", self._look_up, table=_TABLE, key=_KEY),
            )
        }
        if unknown := [name for name in offered if name not in known]:
            raise ConfigError(f"files: offered={list(offered)}: no tool {unknown[0]}; there are {', '.join(known)}")
        self.tools = tuple(known[name] for name in dict.fromkeys(offered))

    async def close(self) -> None:
        pass

    def _read(self, arguments: Mapping[str, Any], workspace: Workspace) -> str:
        path = arguments["path"]
        try:
            content, more = read_within(workspace.path, path, max_bytes=self._max_bytes)
        except FileMissing as e:
            raise FileMissing(f"{e}{self._beside(path, workspace)}") from e
        if b"\0" in content:
            raise FileProblem(f"{shown(path)} is no text")
        lines = content.decode("utf-8", "replace").splitlines()
        if self._max_lines is not None and len(lines) > self._max_lines:
            lines, more = lines[: self._max_lines], True
        return "\n".join([*lines, MORE] if more else lines)

    def _beside(self, path: str, workspace: Workspace) -> str:
        """For an error message: the names of the files that do exist in the folder."""
        folder = "/".join(parts_of(path)[:-1])
        try:
            entries = list_within(workspace.path, folder, max_entries=self._max_files)
        except FileProblem:
            return ""
        return f"; there are {', '.join(shown(e.name) for e in entries[:10])}" if entries else "; there are none"

    def _write(self, arguments: Mapping[str, Any], workspace: Workspace) -> str:
        path, content = arguments["path"], arguments["content"].encode("utf-8", "replace")
        if len(content) > self._max_bytes:
            raise PathRefused(f"{len(content)} bytes; a file has at most {self._max_bytes}")
        write_within(workspace.path, path, content, max_files=self._max_files)
        return f"{len(content)} bytes written to {'/'.join(parts_of(path))}"

    def _list(self, arguments: Mapping[str, Any], workspace: Workspace) -> str:
        entries = list_within(workspace.path, arguments.get("path", "."), max_entries=self._max_files)
        return "\n".join(_row(e) for e in entries) or "no files"

    def _look_up(self, arguments: Mapping[str, Any], workspace: Workspace) -> str:
        limits = {"max_bytes": self._max_bytes, "max_entries": self._max_files}
        return look_up(workspace.path, arguments["table"], arguments["key"], **limits)


def _row(entry: DirectoryEntry) -> str:
    if entry.is_folder:
        return f"{shown(entry.name)}/"
    return f"{shown(entry.name)} {'(no file)' if entry.num_bytes is None else entry.num_bytes}"


def _tool(name: str, description: str, run: Run, needed: tuple[str, ...] | None = None, **texts: str) -> FileTool:
    """A tool whose arguments are all texts; `texts` gives their descriptions."""
    schema = {
        "type": "object",
        "properties": {argument: {"type": "string", "description": about} for argument, about in texts.items()},
        "required": list(texts if needed is None else needed),
        "additionalProperties": False,
    }
    return FileTool(spec=ToolSpec(name=name, description=description, parameters=schema), run=run)


_PATH = "Path of the file, relative to the workspace"
_FOLDER = "Path of the folder, relative to the workspace; the workspace itself if left out"
_CONTENT = "The whole text of the file"
_TABLE = "Name of the table"
_KEY = "Key of the row"
