"""Compare the files of a run that was killed and resumed with those of a run that nobody killed: every file, to the
byte.

Some files cannot be equal, because they hold clocks or payments from before a kill. For these the unequal parts are
left out and the rest is compared. UNEQUAL lists all of them; only the folder orphans/ is skipped completely.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from agentgrpo.services.ledger import FILE as LEDGER

Content = object
"""The comparable content of a file."""

BILLS = ("judge/", "spend/")
"""Prefixes of tags about a process's payments. Calls paid for before a kill are stored, so the later process does not
pay again.
"""
CLOCKS = ("time/checkpoint",)
"""Tags with their own rows. A run that goes back to a checkpoint loses this row, because it is written after the
checkpoint.
"""


def _bytes(path: Path) -> Content:
    return path.read_bytes()


def _without_numbers(path: Path) -> Content:
    """Rows of clocks, reduced to steps or episode ids and the names of the clocks."""
    return [_shape(json.loads(line)) for line in path.read_text().splitlines()]


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: value[key] if key in ("step", "id") else _shape(value[key]) for key in value}
    if isinstance(value, list):
        return [_shape(item) for item in value]
    return None if isinstance(value, float) else value


def _timings(path: Path) -> Content:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    named = [_shape({tag: value for tag, value in row.items() if not tag.startswith(BILLS)}) for row in rows]
    return [row for row in named if not row.keys() <= {"step", *CLOCKS}]


def _evaluation(path: Path) -> Content:
    """The figures and the verdict."""
    found = json.loads(path.read_text())
    return {name: None if name in ("judge", "spend", "sha256") else value for name, value in found.items()}


def _holder(path: Path) -> Content:
    return sorted(json.loads(path.read_text()))


def _table(table: str, columns: str) -> Callable[[Path], Content]:
    def read(path: Path) -> Content:
        return rows_of(path, f"SELECT {columns} FROM {table} ORDER BY key")

    return read


def _ledger(path: Path) -> Content:
    """Only the kinds of calls; `paid_problems` checks the amounts."""
    return rows_of(path, "SELECT DISTINCT kind FROM spent WHERE scope = 'run' ORDER BY kind")


UNEQUAL: Mapping[str, tuple[Callable[[Path], Content], str]] = {
    "run/timings.jsonl": (_timings, "seconds; bills; the seconds of a checkpoint"),
    "run/profile.jsonl": (_without_numbers, "seconds"),
    "run/trajectories/*.timings.jsonl": (_without_numbers, "seconds"),
    "run/run.lock": (_holder, "names the process"),
    "run/eval.json": (_evaluation, "bills of the last process, and the hash of all"),
    f"run/{LEDGER}": (_ledger, "a call that a kill interrupted may be paid for twice"),
    "tape.sqlite": (_table("cassette", "key, kind, request, outcome"), "seconds, their seal, the order of rows"),
    "verdicts.sqlite": (_table("verdicts", "key, scores, reason"), "the order of rows"),
}
"""Files that cannot be equal -> the reader of their comparable part, and a text about the rest."""


def alike(home: Path) -> dict[str, Content]:
    """Name -> content of everything in `home`, which holds the run's directory `run` and its paid results. Without
    run/orphans: work that was done twice, which only a killed run has."""
    found: dict[str, Content] = {}
    boards = []
    for path in sorted(home.rglob("*")):
        name = path.relative_to(home).as_posix()
        if name == "run/orphans" or name.startswith("run/orphans/"):
            continue
        if name.startswith("run/tensorboard/"):
            boards.append(path)
        elif path.is_dir():
            found[f"{name}/"] = "a folder"
        else:
            readers = [reader for pattern, (reader, _) in UNEQUAL.items() if fnmatchcase(name, pattern)]
            found[name] = (readers or [_bytes])[0](path)
    if boards:
        found["run/tensorboard/*"] = _shown(boards)
    return found


def _shown(files: Iterable[Path]) -> Content:
    """(step, tag) -> value, as TensorBoard shows the files of several processes: each process marks the step from which
    earlier values no longer count. Clocks are kept without their values; bills are left out."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    shown: dict[tuple[int, str], Any] = {}
    for path in sorted(files, key=lambda p: p.name):
        for raw in RawEventFileLoader(str(path)).Load():
            event = Event.FromString(raw)
            if event.session_log.status == SessionLog.START:
                shown = {key: value for key, value in shown.items() if key[0] < event.step}
            for value in event.summary.value:
                is_clock = value.tag.startswith(("time/", "throughput/"))
                if not value.tag.startswith(BILLS) and value.tag not in CLOCKS:
                    shown[event.step, value.tag] = None if is_clock else value.SerializeToString()
    return shown


def rows_of(path: Path, sought: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        return connection.execute(sought).fetchall()


Asked = Mapping[str, Counter[str]]
"""Kind of service -> request -> how often it has reached the service."""


def paid_problems(
    home: Path, expected: Asked, found: Asked, *, prices: Mapping[str, float], interrupted: int = 0
) -> list[str]:
    """Compare the payments of a killed run with those of a run without kills. Problems: other requests, repeated
    requests for results already received, or calls missing in the ledger. prices: price of a call, by kind.
    interrupted: number of calls of a kind that kills may have cut off."""
    problems = []
    for kind, requests in found.items():
        if other := requests.keys() ^ expected[kind].keys():
            problems.append(f"{kind}: {len(other)} requests of one run alone, such as {min(other)}")
        if (again := requests.total() - expected[kind].total()) > interrupted:
            problems.append(f"{kind}: {again} calls were made again, and {interrupted} may have been cut off")
        rows = rows_of(home / "run" / LEDGER, f"SELECT calls, money FROM spent WHERE scope = 'run' AND kind = '{kind}'")
        calls, money = rows[0] if rows else (0, 0)
        if calls < requests.total():
            problems.append(f"{kind}: {requests.total()} calls were made, and {calls} are in the ledger")
        if money != round(calls * prices[kind] * 1e9):
            problems.append(f"{kind}: {calls} calls at {prices[kind]} do not come to {money / 1e9}")
    return problems
