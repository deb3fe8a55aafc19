"""run.profile: rows that add up to each step's wall time, and a run that is otherwise the same to the byte."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.cli.main import main
from agentgrpo.core.stages import Stage
from agentgrpo.run import recording
from tests.e2e.conftest import Run, rows

SHORT = ["run.max_steps=3", "run.checkpoint_every=2", "run.eval_every=2", "run.eval_tasks=10", "run.final_eval=false"]
STEP = ["rollout.tasks_per_step=4", "rollout.group_size=4"]
STAGES = [stage.value for stage in Stage]


@pytest.mark.slow
def test_rows_add_up_to_the_wall_time_of_each_step(
    train: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = []
    note = recording._note_profile

    def watched(*args: Any) -> dict[str, float]:
        ends.append(time.perf_counter())
        return note(*args)

    monkeypatch.setattr(recording, "_note_profile", watched)
    run_dir = train(*SHORT, *STEP, "run.profile=true")
    profile = rows(run_dir / "profile.jsonl")
    assert [row["step"] for row in profile] == [0, 1, 2]
    for row in profile:
        assert sorted(row) == sorted(["step", "total", *STAGES])
        assert sum(row[name] for name in STAGES) == pytest.approx(row["total"], abs=1e-6)
        work = ("generation", "reward", "pack", "forward", "backward", "optimizer", "sync", "records")
        assert all(row[name] > 0 for name in work), row
        assert row["other"] < 0.2 * row["total"]
    for row, before, after in zip(profile[1:], ends, ends[1:], strict=False):
        assert row["total"] == pytest.approx(after - before, abs=0.005)
    assert [row["evaluation"] > 0 for row in profile] == [False, False, True]  # before step 2
    assert [row["checkpoint"] > 0 for row in profile] == [False, False, True]
    clocks: dict[str, float] = {}
    for row in rows(run_dir / "timings.jsonl"):
        clocks |= row if row["step"] == 1 else {}
    parts = profile[1]
    assert parts["generation"] + parts["tools"] + parts["queue"] == pytest.approx(clocks["time/generation"], abs=0.005)
    out = capsys.readouterr().out
    assert "time of a step, mean of 3" in out
    assert "step time: mean " in out


@pytest.mark.slow
def test_a_slow_retriever_shows_under_tools(train: Run) -> None:
    slow = "tests.e2e.controls:slow_retrievers"
    run_dir = train(*SHORT, *STEP, "run.max_steps=1", "run.profile=true", f"retriever.name={slow}")
    [row] = rows(run_dir / "profile.jsonl")
    assert row["tools"] > 0.3  # at least one round in which every episode waits
    assert row["tools"] > row["queue"]


def recorded(run_dir: Path) -> dict[str, bytes]:
    files = [p for p in run_dir.rglob("*") if p.suffix in (".jsonl", ".safetensors")]
    clocks = ("timings.jsonl", "profile.jsonl")
    return {str(p.relative_to(run_dir)): p.read_bytes() for p in files if not p.name.endswith(clocks)}


@pytest.mark.slow
def test_a_profile_changes_no_byte_of_what_a_run_records(train: Run) -> None:
    plain, profiled = train(*SHORT, *STEP), train(*SHORT, *STEP, "run.profile=true", name="profiled")
    assert (profiled / "profile.jsonl").exists()
    assert not (plain / "profile.jsonl").exists()
    assert len(recorded(plain)) == 2 * 2 + 3 + 2  # two checkpoints, three steps' trajectories, the metrics, the seals
    assert recorded(plain) == recorded(profiled)


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_profile(train: Run) -> None:
    run_dir = train(*SHORT, *STEP, "run.profile=true")
    shutil.rmtree(run_dir / "checkpoints" / "step-000003")
    before = (run_dir / "profile.jsonl").read_bytes().splitlines()
    assert main(["resume", str(run_dir)]) == 0
    after = (run_dir / "profile.jsonl").read_bytes().splitlines()
    assert [row["step"] for row in rows(run_dir / "profile.jsonl")] == [0, 1, 2]
    assert after[:2] == before[:2]
    assert after[2] != before[2]
    [cut] = (run_dir / "orphans").glob("profile-*.jsonl")
    assert cut.read_bytes().splitlines() == before[2:]
