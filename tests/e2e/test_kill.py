"""The short version of scripts/soak/kill_loop.py: SIGKILLs, nothing lost, nothing twice, not a byte different."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from scripts.soak.kill_loop import KINDS, Kills, kill
from tests.tools.bubblewrap import needs_bubblewrap

CARRIED = [
    "algorithm.max_staleness=1",
    "algorithm.replay_groups=6",
    "algorithm.mask_truncated=true",
    "rollout.refill_rounds=1",
    "rollout.curriculum=difficulty",
]
"""All that a step hands to the next one besides the weights, and rollouts that are in flight during updates."""
TINY = [
    *("run.max_steps=2", "run.checkpoint_every=1", "run.eval_every=0", "run.eval.tasks=2", "run.log_with=[]"),
    *("rollout.tasks_per_step=1", "rollout.group_size=2"),
]


def killed(kind: str, most: int, start: Path, scratch: Path, *overrides: str, by_clock: bool) -> Kills:
    kills = Kills(rng=random.Random(0), most=most)
    assert kill(kind, kills, scratch, start=start, overrides=overrides, by_clock=by_clock) == []
    assert kills.count == most
    return kills


@pytest.mark.timeout(300)
def test_kills_change_nothing_of_what_was_paid_for(start: Path, tmp_path: Path) -> None:
    """A search agent over services: a kill at a durable operation, most often of cassette, verdicts or ledger."""
    killed("services", 1, start, tmp_path, *TINY, by_clock=False)


@needs_bubblewrap
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "settings"), [*((kind, []) for kind in KINDS), ("search", CARRIED)])
def test_kills_change_nothing(start: Path, tmp_path: Path, kind: str, settings: list[str]) -> None:
    killed(kind, 3, start, tmp_path, *settings, by_clock=True)
