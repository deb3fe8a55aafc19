"""In the world that only reinforcement can learn whole: what must not lead to success there, does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgrpo.cli.main import main

SHORT = (
    *("experiment=research", "run.max_steps=12", "run.checkpoint_every=12", "run.eval_every=0", "run.eval.tasks=115"),
    *("run.eval.baselines=false", "run.log_with=[]", "run.screen=quiet"),
    "model.worlds=180",  # start weights in half the time
    "guards=none",  # a guard would end some of them early
)


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first of them makes the start weights
@pytest.mark.parametrize(
    "broken",
    [
        "reward.name=tests.e2e.controls:ShuffledReward",
        "reward.name=tests.e2e.controls:ForeignReward",
        "reward.name=tests.e2e.controls:NegatedReward",
        "optimizer.lr=1e-9",
    ],
)
def test_negative_controls_do_not_pass(tmp_path: Path, broken: str) -> None:
    assert main(["train", *SHORT, f"run.dir='{tmp_path / 'run'}'", broken]) == 0
    result = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert result["verdict"] != "PASS", result
