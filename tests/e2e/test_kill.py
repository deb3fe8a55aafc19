"""The short version of scripts/soak/kill_loop.py: SIGKILLs, nothing lost, nothing twice, not a byte different."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "soak" / "kill_loop.py"
CARRIED = [
    "algorithm.max_staleness=1",
    "algorithm.replay_groups=6",
    "algorithm.mask_truncated=true",
    "rollout.refill_rounds=1",
    "rollout.curriculum=difficulty",
]
"""All that a step hands to the next one besides the weights, and rollouts that are in flight during updates."""
SHORTER = ["run.max_steps=4", "run.eval_tasks=4", "run.eval.tasks=4"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kills", "settings"),
    [
        pytest.param(5, [], id="default"),
        pytest.param(10, CARRIED, id="ahead"),
    ],
)
def test_kills_change_nothing(start: Path, kills: int, settings: list[str]) -> None:
    survive("--start", str(start), "--kills", str(kills), *settings)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kills_change_nothing_of_what_was_written_down(memory_start: Path) -> None:
    """Memory episodes: a context for every chunk, what each changed, the reader's answers."""
    survive("--start", str(memory_start), "--kills", "5", "--experiment", "memory", *SHORTER)


def survive(*arguments: str) -> None:
    """The loop, which itself compares every byte."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    last = done.stdout.splitlines()[-1]
    assert last.endswith(" passed, 0 failed")
    assert int(last.split()[0]) >= max(1, int(arguments[arguments.index("--kills") + 1]) // 10)
