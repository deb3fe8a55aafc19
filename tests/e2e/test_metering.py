"""A run over services: recorded, replayed with all of them gone, and stopped by its budget."""

from __future__ import annotations

import json
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.cli.main import main
from tests.e2e.conftest import Run, rows
from tests.e2e.stand_ins import asking, services
from tests.services.services import queries_of

SHORT = ["run.max_steps=2", "rollout.tasks_per_step=4", "rollout.group_size=4", "run.eval_every=1", "run.eval_tasks=4"]
KEY = "sk-canary-5b1f09aa"


NOWHERE = asking("http://127.0.0.1:9/retrieve", "http://127.0.0.1:9/retrieve", "http://127.0.0.1:9/v1")


def results(run_dir: Path) -> dict[str, bytes]:
    """All that a replay must repeat, byte for byte."""
    files = [run_dir / "metrics.jsonl", *sorted((run_dir / "trajectories").glob("*.jsonl"))]
    files += sorted((run_dir / "checkpoints").glob("step-*/model.safetensors"))
    return {str(p.relative_to(run_dir)): p.read_bytes() for p in files if not p.name.endswith(".timings.jsonl")}


def bill(run_dir: Path) -> dict[str, float]:
    total: dict[str, float] = {}
    for row in rows(run_dir / "timings.jsonl"):
        for tag, value in row.items():
            if tag.startswith(("spend/", "judge/")):
                total[tag] = total.get(tag, 0.0) + value
    return total


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)


def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection was opened")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)


@pytest.mark.slow
def test_a_recorded_run_is_replayed_bit_for_bit_for_nothing(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = f"cassette.path='{tmp_path / 'tape'}'"
    # no veto: whoever is hardly ever right asks about wrong answers too
    evaluated = [*SHORT, "run.eval.tasks=4", "judge.min_overlap=null", tape]
    with services() as live:
        recorded = train(*evaluated, *live.arguments, "cassette.mode=fill", name="recorded")
        asked = len(queries_of(live.vdb)) + len(queries_of(live.web))
        verdict = json.loads((recorded / "eval.json").read_text())
        spend, means = verdict["spend"], verdict["sampled"]["trained"]
        listed = 0.015 * means["web_searches"] + 0.001 * means["vdb_searches"] + 0.02 * means["rerank_calls"]
        # what was asked for, paid or not: at the budget's prices, and what it does not name at the environment's
        assert means["cost"] == pytest.approx(listed)
        assert spend["calls"]["web"] + spend["calls"]["vdb"] == asked > 0
        assert (recorded / "spending.sqlite").is_file()
    no_sockets(monkeypatch)
    monkeypatch.delenv("JUDGE_KEY")
    replayed = train(*evaluated, *NOWHERE, "cassette.mode=strict", name="replayed")
    assert results(recorded) == results(replayed)
    assert len(results(recorded)) > 6
    _, *episodes = rows(recorded / "trajectories" / "train-000000.jsonl")
    records = [record for row in episodes for record in row["agent"]["tools"]]
    assert {r["cost"] for r in records if r["name"] == "search"} <= {0.015, 0.001, 0.0}
    assert sum(r["cost"] for r in records) > 0
    paid, again = bill(recorded), bill(replayed)
    assert (paid["spend/calls/web"] > 0, paid["spend/calls/judge"] > 0, paid["judge/cost"] > 0) == (True, True, True)
    assert {name: value for name, value in again.items() if name.startswith("spend/") and value} == {
        "spend/replayed": again["spend/replayed"]
    }
    assert (again["judge/cost"], again["judge/calls"], again["judge/answers"]) == (0, 0, paid["judge/answers"])
    assert json.loads((replayed / "eval.json").read_text())["spend"]["money"] == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [str(path) for path in files if KEY.encode() in path.read_bytes()] == []


@pytest.mark.slow
def test_a_request_that_was_not_recorded_ends_a_strict_replay(
    train: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*SHORT, "run.final_eval=false", "run.eval_every=0", f"cassette.path='{tmp_path / 'tape'}'"]
    with services() as live:
        train(*arguments, *live.arguments, "cassette.mode=fill", "run.max_steps=1", name="recorded")
    no_sockets(monkeypatch)
    run_dir = train(*arguments, *NOWHERE, "cassette.mode=strict", name="replayed", code=2)
    message = capsys.readouterr().err
    assert "tape has no answer to " in message
    assert "record it with cassette.mode=fill" in message
    assert [row["step"] for row in rows(run_dir / "metrics.jsonl")] == [0]
    assert (run_dir / "checkpoints" / "step-000001").is_dir()


@pytest.mark.slow
def test_a_budget_stops_a_run_at_its_last_whole_step_and_a_larger_one_goes_on(
    train: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SHORT, "run.final_eval=false", "run.eval_every=0", "run.max_steps=3"]
    with services() as live:
        prices = ["budget.prices.web=1", "budget.prices.vdb=1", "judge.prompt_price=0"]
        whole = train(*arguments, *live.arguments, *prices, name="whole")
        step_0 = [row for row in rows(whole / "timings.jsonl") if row["step"] == 0 and "spend/money" in row]
        limit = int(step_0[0]["spend/calls/vdb"] + step_0[0].get("spend/calls/web", 0)) + 3
        before = len(queries_of(live.vdb)) + len(queries_of(live.web))
        limited = [*prices, f"budget.per_run.money={limit}"]
        run_dir = train(*arguments, *live.arguments, *limited, name="stopped", code=11)
        message = capsys.readouterr().err
        assert len(queries_of(live.vdb)) + len(queries_of(live.web)) - before == limit
        assert f"budget.per_run.money={limit}, {limit} of {limit} are spent" in message
        assert f"agentgrpo resume {shlex.quote(str(run_dir))}" in message
        assert message.rstrip().endswith(f"budget.per_run.money={2 * limit}")
        assert [row["step"] for row in rows(run_dir / "metrics.jsonl")] == [0]
        assert (run_dir / "checkpoints" / "step-000001").is_dir()
        assert main(["show", str(run_dir)]) == 0
        said = capsys.readouterr().out
        assert f"\nstopped after step 1 of 3: the budget is spent: budget.per_run.money={limit}, {limit} of" in said
        assert f" budget.per_run.money={2 * limit}" in said.rstrip().splitlines()[-1]
        needed = [a for a in live.arguments if a.startswith(("judge.completer", "retriever."))]
        assert main(["resume", str(run_dir), *needed, f"budget.per_run.money={limit}"]) == 11
        assert len(queries_of(live.vdb)) + len(queries_of(live.web)) - before == limit
        assert main(["resume", str(run_dir), *needed, "budget.per_run.money=1000000"]) == 0
    assert not (run_dir / "stopped.json").exists()
    assert (run_dir / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
