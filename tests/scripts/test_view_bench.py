"""The bench of `agentgrpo view`: simulated runs of any length that are read like real ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import view

from agentgrpo.records.run_dir import RunDir
from agentgrpo.records.trajectories import read_trajectories
from tests.reports.view import made


@pytest.mark.parametrize("tokens", [True, False])
def test_a_simulated_run(tokens: bool, tmp_path: Path) -> None:
    real = made.make_run(tmp_path / "real")
    for step in (0, 1):
        made.record(real, *(replace(made.ANSWERED, sample_index=i) for i in range(3)), name=f"train-{step:06d}")
    view.write_run(tmp_path / "simulated", RunDir(real), 50, tokens=tokens)
    run = RunDir(tmp_path / "simulated")
    records = [[*read_trajectories(file.path)] for file in run.trajectory_files()]
    assert [len(rows) for rows in records] == [43, 7]  # 16 groups of 3, 3 and 2
    assert len({(rows[0].step, row.id) for rows in records for row in rows}) == 50
    assert [row.group for row in records[0][:4]] == ["simulated-0-0"] * 3 + ["simulated-0-1"]
    assert [bool(row.branches) for row in records[0][:4]] == [tokens] * 4
    assert [row["step"] for row in run.metrics()] == [0, 1]
    assert run.trajectory_files()[1].clocks()["simulated-1-0/0"]["time_tools"] == 0.25
    [source] = made.opened(run.path)
    assert source.pieces is not None
