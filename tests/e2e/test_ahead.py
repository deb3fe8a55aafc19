"""Runs whose rollouts are one step ahead, through the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agentgrpo.cli.main import main
from tests.e2e.conftest import Run, rows

SHORT = ["run.max_steps=4", "run.checkpoint_every=1", "run.keep_last=9", "run.eval_every=2", "run.eval_tasks=10"]
STEP = ["run.eval.tasks=20", "rollout.tasks_per_step=4", "rollout.group_size=4"]
AHEAD = ["algorithm.max_staleness=1"]
BRIEF = ["run.final_eval=false", "run.eval_every=0", "rollout.tasks_per_step=2"]
CARRIED = [*AHEAD, "rollout.refill_rounds=2", "rollout.curriculum=difficulty", "algorithm.replay_groups=4"]


def compared(a: Path, b: Path) -> list[str]:
    """Names of the files that differ: everything that is recorded, and the last weights and optimizer."""
    names = ["metrics.jsonl", "eval.json", "checkpoints/step-000004/model.safetensors"]
    names += ["checkpoints/step-000004/trainer/optimizer.safetensors"]
    names += [f"trajectories/train-{step:06d}.jsonl" for step in range(4)]
    return [name for name in names if (a / name).read_bytes() != (b / name).read_bytes()]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [AHEAD, CARRIED], ids=["ahead", "all"])
def test_resumed_anywhere_it_is_the_same_run(train: Run, tmp_path: Path, settings: list[str]) -> None:
    whole = train(*SHORT, *STEP, *settings)
    for step in (1, 2, 3):
        again = tmp_path / "whole"
        shutil.move(whole, again)  # a resumed run is where it was
        shutil.copytree(again, whole)
        for later in range(step + 1, 5):
            shutil.rmtree(whole / "checkpoints" / f"step-{later:06d}")
        (whole / "eval.json").unlink()
        assert main(["resume", str(whole)]) == 0
        assert compared(again, whole) == [], f"resumed at {step}"
        shutil.rmtree(whole)
        shutil.move(again, whole)


@pytest.mark.slow
def test_it_says_how_old_its_episodes_are_and_profiles_what_overlaps(train: Run) -> None:
    # enough episodes for rewards that differ: without a sample no age is said
    run_dir = train(*SHORT, *STEP, *AHEAD, *BRIEF, "run.profile=true", "rollout.tasks_per_step=8")
    found = rows(run_dir / "metrics.jsonl")
    assert [row["policy/staleness_max"] for row in found] == [0.0, 1.0, 1.0, 1.0]
    assert [row["groups/stale"] for row in found] == [0.0] * 4
    assert all("policy/correction_mean" in row for row in found)
    for step, version in enumerate((0, 0, 1, 2)):
        lines = (run_dir / "trajectories" / f"train-{step:06d}.jsonl").read_text().splitlines()[1:]
        assert {json.loads(line)["policy_version"] for line in lines} == {version}
    for row in rows(run_dir / "profile.jsonl"):
        stages = {name: seconds for name, seconds in row.items() if name not in ("step", "total")}
        assert sum(stages.values()) == pytest.approx(row["total"], abs=1e-6)
        assert row["update"] > 0
        assert row["forward"] == row["backward"] == 0.0  # not told apart from what goes on beside it


@pytest.mark.slow
def test_a_profile_changes_no_byte_of_it(train: Run) -> None:
    plain = train(*SHORT, *STEP, *AHEAD, name="plain")
    profiled = train(*SHORT, *STEP, *AHEAD, "run.profile=true", name="profiled")
    assert compared(plain, profiled) == []


@pytest.mark.slow
def test_the_number_of_versions_behind_is_part_of_the_run(train: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = train(*AHEAD, *BRIEF, "run.max_steps=1")
    assert main(["resume", str(run_dir), "run.max_steps=2", "algorithm.max_staleness=0"]) == 4
    assert "algorithm.max_staleness was 1, is now 0" in capsys.readouterr().err
