"""A real chat model, as a user gets it: from the package index to a run that is stopped and gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgrpo.cli.main import main
from tests.e2e.conftest import rows

SHORT = [
    *("experiment=smollm2", "hardware.threads=1", "run.max_steps=1", "rollout.group_size=4", "run.screen=quiet"),
    *("run.checkpoint_every=1", "run.log_with=[]", "run.eval.tasks=14", "run.dir=r"),
]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_knows_the_format_after_its_cold_start_and_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Converted and taught in the cache of whoever runs this, where both are kept."""
    monkeypatch.chdir(tmp_path)
    assert main(["train", *SHORT]) == 0
    assert main(["resume", "r", "run.max_steps=2"]) == 0
    assert [row["step"] for row in rows(Path("r/metrics.jsonl"))] == [0, 1]
    greedy = json.loads(Path("r/eval.json").read_text())["greedy"]["kinds"]
    for kind in ("rows", "convert"):  # shown, and learned by this start
        assert greedy[kind]["baseline"]["success"] == 1.0
    assert rows(Path("r/metrics.jsonl"))[0]["policy/logprob_gap_max"] < 1e-3
