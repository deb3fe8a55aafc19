"""A polite stop leaves a run that goes on as if nothing had been; one process at a time has its directory. Kills:
test_kill.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentgrpo.cli.main import main
from tests.e2e.conftest import SMALL_WORLD, Run

SHORT = [
    "run.max_steps=3",
    "run.checkpoint_every=3",
    "run.eval_every=0",
    "run.eval.tasks=6",
    "rollout.tasks_per_step=2",
]


@contextmanager
def begun(run_dir: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A run in a process of its own, in the middle of its work: its first step is recorded. It ends with the block."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "agentgrpo", "train", *SMALL_WORLD, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        try:
            metrics, deadline = run_dir / "metrics.jsonl", time.monotonic() + 200
            while not metrics.exists() and time.monotonic() < deadline and process.poll() is None:
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


WRITTEN = (
    "metrics.jsonl",
    "eval.json",
    "trajectories/train-000002.jsonl",
    "checkpoints/step-000003/model.safetensors",
)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_exits_with_75_and_resumes_exactly(
    train: Run, start: Path, tmp_path: Path, number: signal.Signals
) -> None:
    whole = train(*SHORT, name="whole")
    run_dir = tmp_path / "stopped"
    arguments = ["model=path", f"model.path='{start}'", f"run.dir='{run_dir}'", *SHORT]
    with begun(run_dir, *arguments) as process:
        process.send_signal(number)
        _, error = process.communicate(timeout=100)
    assert process.returncode == 75, error
    assert f"stopped by {number.name}" in error
    assert error.count("\n") == 1
    assert main(["resume", str(run_dir)]) == 0
    assert [name for name in WRITTEN if (whole / name).read_bytes() != (run_dir / name).read_bytes()] == []


def test_two_processes_never_share_a_run_directory(
    train: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from agentgrpo.core.durable import RunLock

    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with RunLock(run_dir):
        train(*SHORT, code=3)
    assert str(os.getpid()) in capsys.readouterr().err
