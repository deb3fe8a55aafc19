"""What the kill loop takes for equal: two runs that differ in clocks and bills are, with anything else they are not."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agentgrpo.services.budget import Budget
from agentgrpo.services.ledger import Ledger, LedgerEntry
from scripts.soak.alike import alike, paid_problems


def written(home: Path, seconds: float) -> Path:
    """The files of a run that took so long."""
    run = home / "run"
    (run / "trajectories").mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"step":0,"reward":0.5}\n')
    (run / "run.lock").write_text(json.dumps({"host": "here", "pid": int(1000 * seconds)}))
    rows = [{"step": 0, "time/train": seconds, "spend/calls/web": seconds}]
    rows += [{"step": 1, "time/checkpoint": seconds}] if seconds < 2 else []
    (run / "timings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "profile.jsonl").write_text(json.dumps({"step": 0, "forward": seconds}) + "\n")
    clocks = {"id": "q/0", "tools": [{"search": seconds}]}
    (run / "trajectories" / "train-000000.timings.jsonl").write_text(json.dumps(clocks) + "\n")
    evaluation = {"verdict": "PASS", "spend": {"seconds": seconds}, "sha256": str(seconds)}
    (run / "eval.json").write_text(json.dumps(evaluation))
    ledger = Ledger(run, Budget())
    ledger.reserve([LedgerEntry(0, "web", 2_000_000_000)] * int(seconds))
    ledger.close()
    tables = {"tape": "cassette (key, kind, request, outcome, seconds)", "verdicts": "verdicts (key, scores, reason)"}
    for name, table in tables.items():
        with closing(sqlite3.connect(home / f"{name}.sqlite")) as connection, connection:
            connection.execute(f"CREATE TABLE {table}")
    with closing(sqlite3.connect(home / "tape.sqlite")) as connection, connection:
        connection.execute("INSERT INTO cassette VALUES ('k', 'web', '?', '!', ?)", (seconds,))
    return home


def test_clocks_and_bills_may_differ(tmp_path: Path) -> None:
    a, b = written(tmp_path / "a", 1.5), written(tmp_path / "b", 2.5)
    (b / "run" / "orphans").mkdir()
    (b / "run" / "orphans" / "metrics-0.jsonl").write_text("{}\n")
    assert alike(a) == alike(b)


def replaced(name: str, old: str, new: str) -> Callable[[Path], object]:
    def act(home: Path) -> None:
        text = (home / name).read_text()
        assert old in text
        (home / name).write_text(text.replace(old, new))

    return act


def executed(name: str, statement: str) -> Callable[[Path], object]:
    def act(home: Path) -> None:
        with closing(sqlite3.connect(home / name)) as connection, connection:
            connection.execute(statement)

    return act


@pytest.mark.parametrize(
    ("act", "name"),
    [
        (replaced("run/metrics.jsonl", "0.5", "0.6"), "run/metrics.jsonl"),
        (replaced("run/timings.jsonl", "time/train", "time/other"), "run/timings.jsonl"),
        (replaced("run/profile.jsonl", '"step": 0', '"step": 1'), "run/profile.jsonl"),
        (
            replaced("run/trajectories/train-000000.timings.jsonl", "q/0", "q/1"),
            "run/trajectories/train-000000.timings.jsonl",
        ),
        (replaced("run/eval.json", "PASS", "FAIL"), "run/eval.json"),
        (replaced("run/run.lock", "pid", "p"), "run/run.lock"),
        (executed("tape.sqlite", "UPDATE cassette SET outcome = '?'"), "tape.sqlite"),
        (executed("verdicts.sqlite", "INSERT INTO verdicts VALUES ('k', '[1]', '')"), "verdicts.sqlite"),
        (executed("run/spending.sqlite", "INSERT INTO spent VALUES ('run', 'vdb', 1, 0, 0)"), "run/spending.sqlite"),
        (lambda home: (home / "run" / ".tmp-01234567-eval.json").touch(), "run/.tmp-01234567-eval.json"),
        (lambda home: (home / "tmp").mkdir(), "tmp/"),
    ],
)
def test_nothing_else_may(tmp_path: Path, act: Callable[[Path], object], name: str) -> None:
    a, b = written(tmp_path / "a", 1.5), written(tmp_path / "b", 2.5)
    act(b)
    found, expected = alike(b), alike(a)
    assert [n for n in sorted(found.keys() | expected.keys()) if found.get(n) != expected.get(n)] == [name]


def test_a_call_that_was_made_is_in_the_ledger(tmp_path: Path) -> None:
    home = written(tmp_path, 2.0)  # two calls at 2

    def problems(*asked: str, price: float = 2.0, interrupted: int = 1) -> list[str]:
        expected, found = {"web": Counter("ab")}, {"web": Counter(asked)}
        return paid_problems(home, expected, found, prices={"web": price}, interrupted=interrupted)

    assert problems("a", "b") == []
    assert problems("a", "b", "a") == ["web: 3 calls were made, and 2 are in the ledger"]
    assert problems("a", "b", "a", interrupted=0) == [
        "web: 1 calls were made again, and 0 may have been cut off",
        "web: 3 calls were made, and 2 are in the ledger",
    ]
    assert problems("a") == ["web: 1 requests of one run alone, such as b"]
    assert problems("a", "b", price=1.0) == ["web: 2 calls at 1.0 do not come to 4.0"]
