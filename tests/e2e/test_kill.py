"""The short version of scripts/soak/kill_loop.py: SIGKILLs, nothing lost, nothing twice, not a byte different."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from scripts.soak.kill_loop import KINDS, Kills, Life, kill
from scripts.soak.moments import Moment
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


class Midway(Kills):
    def moment(self, whole: Life) -> Moment:
        """In the second half: there is a checkpoint to go back to, and what came after it is done again."""
        return Moment(operation=int(0.6 * whole.operations))


def test_a_kill_changes_nothing_of_what_was_paid_for(start: Path, tmp_path: Path) -> None:
    """A search agent over services, killed while its cassette, verdicts and ledger are being written."""
    kills = Midway(rng=random.Random(0), most=1)
    assert kill("services", kills, tmp_path, start=start, overrides=TINY) == []
    assert (kills.count, kills.failed) == (1, 0)


@needs_bubblewrap
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "settings"), [*((kind, []) for kind in KINDS), ("search", CARRIED)])
def test_kills_change_nothing(start: Path, tmp_path: Path, kind: str, settings: list[str]) -> None:
    kills = Kills(rng=random.Random(0), most=3)
    assert kill(kind, kills, tmp_path, start=start, overrides=settings) == []
    assert (kills.count, kills.failed) == (3, 0)
