"""A run that is asked again and again what it is at ends as if nobody had asked, and has answered."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import SMALL_WORLD, Run, rows

SHORT = [
    "run.max_steps=4",
    "run.checkpoint_every=4",
    "run.eval_every=0",
    "run.eval.tasks=20",
    "rollout.tasks_per_step=4",
]
WATCHFUL = ["run.watchdog_s=0.2", "run.max_loop_lag_s=0.01", "run.screen=plain"]
LEAST = 20
"""Signals that the run gets at least."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_signals_at_random_change_nothing(train: Run, start: Path, tmp_path: Path) -> None:
    whole = train(*SHORT, name="whole")
    run_dir, rng, sent = tmp_path / "asked", random.Random(0), 0
    arguments = ["model=path", f"model.path='{start}'", f"run.dir='{run_dir}'", *SHORT, *WATCHFUL]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "agentgrpo", "train", *SMALL_WORLD, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    asked = run_dir / "diagnostics" / f"{process.pid}.txt"
    deadline = time.monotonic() + 200
    while process.poll() is None and time.monotonic() < deadline:
        # the configuration is written after the handlers are there, and eval.json near the end
        if (run_dir / "config.yaml").exists() and not (run_dir / "eval.json").exists():
            process.send_signal(rng.choice((signal.SIGUSR1, signal.SIGUSR2)))
            sent += 1
        time.sleep(rng.uniform(0.01, 0.2))
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output[-3000:]
    assert sent >= LEAST
    for name in (
        "metrics.jsonl",
        "eval.json",
        *(f"trajectories/train-{step:06d}.jsonl" for step in range(4)),
        "checkpoints/step-000004/model.safetensors",
    ):
        assert (whole / name).read_bytes() == (run_dir / name).read_bytes(), name

    text = asked.read_text()
    assert text.count(", SIGUSR1, ") > LEAST / 4
    assert text.count(", SIGUSR2, ") > LEAST / 4
    assert re.search(r"^    agentgrpo/run/train\.py:\d+ roll_out  \| ", text, re.MULTILINE)
    assert re.search(r"^episode \S+/\d, .*:\n    agentgrpo/rollout/groups\.py:\d+ run_groups", text, re.MULTILINE)
    assert re.search(r"^=== \S+, step \d has taken \d\.\d s, tasks: \d+, places: \d+$", text, re.MULTILINE)
    assert re.search(r"^=== \S+, step \d, threads: \d+$", text, re.MULTILINE)
    assert "thread MainThread:\n" in text
    assert str(asked) in output
    assert "note: step " in output
    blamed = re.findall(r"stood still for .* held up by \S+ at (\S+):", output)  # whom a busy machine stops for 10 ms
    assert not [b for b in blamed if "engines/" in b or "diagnostics" in b or "await_chains" in b], blamed
    clocks = [json.loads(line) for line in (run_dir / "timings.jsonl").read_text().splitlines()]
    lags = {row["step"]: row for row in clocks if "time/loop_lag/max" in row}
    assert sorted(lags) == [0, 1, 2, 3]
    assert all(0 <= r["time/loop_lag/p50"] <= r["time/loop_lag/p99"] <= r["time/loop_lag/max"] for r in lags.values())
    assert not any(tag.startswith("time/") for row in rows(run_dir / "metrics.jsonl") for tag in row)
    assert not (whole / "diagnostics").exists()
