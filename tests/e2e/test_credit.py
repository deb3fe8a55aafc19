"""Credit by turn in whole runs: agentgrpo train algorithm.credit=turn algorithm.advantage=leave_one_out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agentgrpo.cli.main import main
from agentgrpo.records.trajectories import TrajectoryRecord, read_trajectories
from tests.e2e.conftest import Run, rows

SHORT = [
    "run.max_steps=3",
    "run.checkpoint_every=1",
    "run.keep_last=4",
    "run.eval_every=0",
    "run.final_eval=false",
    "rollout.tasks_per_step=4",
    "rollout.group_size=4",
    "algorithm.credit=turn",
    "algorithm.advantage=leave_one_out",
]
WRITTEN = [
    "metrics.jsonl",
    "checkpoints/step-000003/model.safetensors",
    "checkpoints/step-000003/trainer/optimizer.safetensors",
    *(f"trajectories/train-{step:06d}.jsonl" for step in range(3)),
]


def credited(run_dir: Path) -> list[TrajectoryRecord]:
    return [r for path in sorted(run_dir.glob("trajectories/train-??????.jsonl")) for r in read_trajectories(path)]


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [[], ["algorithm.kl_in=reward", "algorithm.kl_coef=0.05", "algorithm.kl=k1"]])
def test_a_run_with_credit_by_turn_resumes_exactly(train: Run, overrides: list[str]) -> None:
    run_dir = train(*SHORT, *overrides)
    records = credited(run_dir)
    assert len(records) >= 48
    for record in records:
        assert isinstance(record.advantage, list)
        assert len(record.advantage) == sum(m["sampled"] for m in record.agent["messages"])
    assert any(len(set(r.advantage)) > 1 for r in records if isinstance(r.advantage, list))
    metrics = rows(run_dir / "metrics.jsonl")
    assert max(row["policy/logprob_gap_max"] for row in metrics) <= 1e-4
    assert [("policy/kl_reward" in row) for row in metrics] == [bool(overrides)] * 3
    written = {name: (run_dir / name).read_bytes() for name in WRITTEN}
    for step in (2, 3):  # as a process that was killed in its second step leaves it
        shutil.rmtree(run_dir / "checkpoints" / f"step-{step:06d}")
    assert main(["resume", str(run_dir)]) == 0
    assert [name for name in WRITTEN if (run_dir / name).read_bytes() != written[name]] == []
