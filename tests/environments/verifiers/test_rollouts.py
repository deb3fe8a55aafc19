"""Runs in environments of verifiers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.cli.main import main
from agentgrpo.records.trajectories import read_trajectories

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow


def trained(python: str, *settings: str, run: str = "run", steps: int = 2) -> Path:
    given = ["experiment=none", "model.path=model", "environment=verifiers"]
    given += [f"environment.python={python}", "algorithm.advantage=none", "rollout.max_tokens=24"]
    given += ["rollout.tasks_per_step=2", "rollout.group_size=2", "hardware.threads=1", f"run.max_steps={steps}"]
    given += ["run.eval_every=0", "run.final_eval=false", "run.screen=quiet", "run.log_with=[]", f"run.dir={run}"]
    assert main(["train", *given, *settings]) == 0
    return Path(run)


def steps_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_published_package(desk: Path, python: str) -> None:
    run = trained(python, "environment.id=stardata.envs.constraint_gym")
    for step in steps_of(run):
        assert step["policy/logprob_gap_max"] <= 1e-4
        assert step["program/continued_share"] == 1.0
        assert 0 <= step["agent/prosody_reward"] <= 1
        assert step["reward/mean"] == pytest.approx(step["agent/prosody_reward"])


def test_tools_a_held_out_split_an_evaluation_and_a_resumed_run(
    desk: Path, python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(HERE / "small_env.py", desk)
    here = ["environment.id=small_env", f"environment.python={python}"]
    env = [*here, "environment.args={tools: true, held_out: 3}", "environment.ignore=[tool_choice]"]
    run = trained(python, *env, "run.final_eval=true", "run.eval.tasks=3", "environment.max_requests=4")
    for step in steps_of(run):
        assert step["policy/logprob_gap_max"] <= 1e-4
        worth = step["agent/length"] + 0.5 * step["agent/is_right"]
        assert step["reward/mean"] == pytest.approx(worth)
    held_out = read_trajectories(run / "trajectories" / "eval-end-greedy.jsonl")
    assert {record.task for record in held_out} == {"eval-0", "eval-1", "eval-2"}
    capsys.readouterr()
    assert main(["resume", "run", "run.max_steps=3"]) == 2
    refused = capsys.readouterr().err
    assert "lets a run directory start programs" in refused
    assert "task.id" not in refused
    assert main(["resume", "run", "run.max_steps=3", *here]) == 0
    assert len(steps_of(run)) == 3


def test_what_is_missing_is_said_in_a_line(desk: Path, python: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["train", "experiment=none", "model.path=model", "environment=verifiers"]
    assert main([*given, "environment.id=no_such_package", f"environment.python={python}", "run.dir=a"]) == 2
    assert "environment.id=no_such_package: " in capsys.readouterr().err
    assert main([*given, "environment.id=x", "environment.python=no-such-python", "run.dir=b"]) == 2
    assert "environment.python=no-such-python: there is no such program" in capsys.readouterr().err
