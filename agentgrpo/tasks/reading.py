"""Reading users' JSON lines files. Whatever is wrong with a line is a DataError that names file, line and reason."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from agentgrpo.errors import DataError
from agentgrpo.types import Passage

_QUOTED_TITLE = re.compile(r'"(.*)"\r?\n(.+)', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a file: a JSON object."""

    path: Path
    line: int
    """1-based."""
    values: Mapping[str, Any]

    def refuse(self, reason: str) -> NoReturn:
        raise DataError(f"{self.path}, line {self.line}: {reason}")

    def text(self, key: str) -> str:
        """A non-empty string, without surrounding white space."""
        value = self.values.get(key)
        if not isinstance(value, str) or not value.strip():
            self.refuse(f"'{key}' is {_shown(value)}; it must be a non-empty string")
        return value.strip()

    def optional_text(self, key: str) -> str:
        """A string, "" when the key is absent or null."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            self.refuse(f"'{key}' is {_shown(value)}; it must be a string, or left out")
        return (value or "").strip()

    def id(self, key: str = "id") -> str:
        """A string or an integer, as a string."""
        value = self.values.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self.text(key)


def read_rows(path: str | Path, what: str) -> Iterator[Row]:
    """The objects of a JSON lines file in order; blank lines are skipped. `what` names the file in errors."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise DataError(f"{what}: '{path}' is not a file; give the path of a JSON lines file")
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if raw.strip():
                yield Row(path=path, line=number, values=_object(path, number, raw))


def _object(path: Path, number: int, raw: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(raw.decode("utf-8-sig" if number == 1 else "utf-8"))
        json.dumps(value, ensure_ascii=False).encode()  # "\ud800" is valid JSON, but no text
    except UnicodeError:
        raise DataError(f"{path}, line {number}: not valid UTF-8 text; save the file as UTF-8") from None
    except (ValueError, RecursionError) as e:
        raise DataError(f"{path}, line {number}: not valid JSON ({e}); write one object per line") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}, line {number}: {_shown(value)} is not an object; write one object per line")
    return value


def read_passages(path: str | Path) -> tuple[Passage, ...]:
    """A corpus: lines {"id", "text", "title"?, "url"?}, or {"id", "contents"} with contents = '"Title"\ntext'. Raises
    DataError, also for an empty file or an id used twice."""
    passages: dict[str, Passage] = {}
    lines: dict[str, int] = {}
    for row in read_rows(path, "corpus"):
        id = row.id()
        if id in passages:
            row.refuse(f"id '{id}' was used in line {lines[id]} already; ids must be unique")
        title, text = row.optional_text("title"), row.text("contents" if "contents" in row.values else "text")
        if "contents" in row.values and (quoted := _QUOTED_TITLE.match(text)):
            title, text = quoted[1], quoted[2]
        passages[id] = Passage(id=id, text=text, title=title, url=row.optional_text("url"))
        lines[id] = row.line
    if not passages:
        raise DataError(f"corpus: '{path}' has no passages; write one object with 'id' and 'text' per line")
    return tuple(passages.values())


def read_thesaurus(path: str | Path) -> dict[str, list[str]]:
    """A JSON object, word -> list of words. Raises DataError for anything else."""
    try:
        entries = json.loads(Path(path).expanduser().read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as e:
        raise DataError(f"thesaurus '{path}': {e}; give a JSON file that holds an object, word -> list of words") from e
    if not isinstance(entries, dict) or not all(
        isinstance(words, list) and all(isinstance(w, str) for w in words) for words in entries.values()
    ):
        raise DataError(f'thesaurus \'{path}\' is no object of lists of words; write {{"word": ["other", ...], ...}}')
    return entries


def _shown(value: object) -> str:
    if value is None:
        return "missing"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
