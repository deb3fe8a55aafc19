"""A limit in CPU seconds ends a run at a step, resumed or not; what a step took is no part of what repeats."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest
import torch

from agentgrpo.run import train
from agentgrpo.run.cpu_seconds import cpu_seconds, trained_cpu_s
from tests.run.tiny_run import TinyRun, recorded, rows

STEP_S = 2.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is read when a step begins and when it ends; what comes between steps takes 100 seconds."""
    read = count()

    def seconds() -> float:
        steps, ends = divmod(next(read), 2)
        return 100.0 * steps + STEP_S * ends

    monkeypatch.setattr(train, "cpu_seconds", seconds)
    torch.set_num_threads(1)  # the model is too small to share out


def test_the_clock_of_this_process_goes_on_only_while_it_works() -> None:
    began = cpu_seconds()
    while cpu_seconds() == began:
        pass
    assert 0 < cpu_seconds() - began < 1000


@pytest.mark.parametrize(("limit", "steps"), [(None, 4), (2 * STEP_S, 2), (2 * STEP_S + 0.1, 3)])
async def test_training_ends_with_the_step_that_has_used_it_up(limit: float | None, steps: int, tmp_path: Path) -> None:
    await TinyRun(run_dir=tmp_path, run={"max_steps": 4, "max_cpu_s": limit}).go()
    assert [row["step"] for row in rows(tmp_path)] == [*range(steps)]
    assert trained_cpu_s(tmp_path) == steps * STEP_S
    assert "time/cpu" not in rows(tmp_path)[0]


async def test_a_run_that_is_resumed_counts_what_its_steps_have_taken_once(tmp_path: Path) -> None:
    whole = TinyRun(run_dir=tmp_path / "whole", run={"max_steps": 9, "max_cpu_s": 3 * STEP_S})
    await whole.go()
    for step in (0, 2):
        again = whole.back_to(step, tmp_path / f"from-{step}")
        progress = await again.go()
        assert (progress.step, trained_cpu_s(again.run_dir)) == (3, 3 * STEP_S)
        assert recorded(again.run_dir) == recorded(whole.run_dir)


async def test_with_a_higher_limit_it_goes_on(tmp_path: Path) -> None:
    await TinyRun(run_dir=tmp_path, run={"max_steps": 9, "max_cpu_s": STEP_S}).go()
    progress = await TinyRun(run_dir=tmp_path, run={"max_steps": 9, "max_cpu_s": 2 * STEP_S}).go()
    assert progress.step == len(rows(tmp_path)) == 2


async def test_one_step_off_policy_it_ends_at_the_same_step_and_goes_on(tmp_path: Path) -> None:
    """The rollout that was begun for the step after the last is given up, and begun again where it goes on."""
    made = {"algorithm": {"max_staleness": 1}}
    whole = TinyRun(run_dir=tmp_path / "whole", run={"max_steps": 4}, **made)  # type: ignore[arg-type]
    await whole.go()
    parts = TinyRun(run_dir=tmp_path / "parts", run={"max_steps": 4, "max_cpu_s": 2 * STEP_S}, **made)  # type: ignore[arg-type]
    await parts.go()
    assert len(rows(parts.run_dir)) == 2
    parts.run = {"max_steps": 4}
    await parts.go()
    written = [json.dumps(row) for row in rows(parts.run_dir)]
    assert written == [json.dumps(row) for row in rows(whole.run_dir)]
