"""How much of a policy's score is retrieval, and what a price does to it: all of it through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgrpo.cli.main import main
from tests.e2e.conftest import Run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_without_what_it_reads_a_policy_knows_nothing(train_well: Run, tmp_path: Path) -> None:
    short = ("run.max_steps=4", "run.checkpoint_every=4", "run.eval_every=0", "run.eval.tasks=60", "optimizer.lr=0.003")
    for price in ("0", "-0.4"):
        run = train_well(*short, f"reward.terms.retriever_cost.web={price}", name=f"sweep/price{price}")
    for name in ("blank", "shuffled", "swapped"):
        given = [
            "--ckpt",
            str(run / "checkpoints" / "step-000004"),
            f"counterfactual={name}",
            f"run.dir='{run / name}'",
        ]
        assert main(["eval", *given]) == 0
        assert json.loads((run / name / "evaluated.json").read_text())["ckpt"] == str(run / "checkpoints/step-000004")
    page, found = tmp_path / "page.html", tmp_path / "sweep"
    assert main(["report", str(found), "--out", str(page)]) == 0
    assert "How much of it is retrieval" in page.read_text()
    assert main(["diff", str(found / "price0"), str(found / "price-0.4")]) == 0

    def correctness(folder: Path) -> float:
        result = json.loads((folder / "eval.json").read_text())
        return float(result["greedy"]["trained"]["correctness"])

    assert correctness(run) > 0.4
    assert correctness(run / "blank") == 0.0
    assert correctness(run / "shuffled") < 0.1
    assert correctness(run / "swapped") < 0.1
