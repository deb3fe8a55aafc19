"""The other two embedded experiments from end to end, with a model of random weights: trained, evaluated, resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentgrpo.cli.main import main
from agentgrpo.records.trajectories import read_trajectories
from tests.e2e.conftest import rows
from tests.engines import tiny
from tests.tools.bubblewrap import needs_bubblewrap

NAMED = "reward.terms.parity.name=tests.e2e.parity:Parity"
"""Code from outside is named on every command line that runs it."""
SETTINGS = [
    "model=path",
    f"+{NAMED}",  # random weights never answer
    "+reward.terms.parity.weight=1.0",
    "rollout.tasks_per_step=2",
    "rollout.group_size=2",
    "rollout.max_tokens=8",
    "run.max_steps=2",
    "run.checkpoint_every=1",
    "run.eval_every=0",
    "run.final_eval=false",
    "run.eval.tasks=2",
    "run.screen=quiet",
    "run.log_with=[]",
    "optimizer=tiny",
    "hardware.threads=1",
    "guards=none",
]
DIARIES = ["task.train_diaries=6", "task.dev_diaries=4", "task.test_diaries=11", "task.long_days=12"]
EXPERIMENTS = {
    "tools": ["task.train_tasks=24", "task.dev_tasks=12", "task.test_tasks=12", "environment.max_turns=2"],
    "memory": DIARIES,
    "memory_hard": DIARIES,
}


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the bytes, with room for what the experiments open with."""
    folder = tmp_path_factory.mktemp("model")
    config: Any = {**tiny.model().config.to_dict(), "max_position_embeddings": 8192, "initializer_range": 0.05}
    Qwen3ForCausalLM(Qwen3Config(**config)).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@needs_bubblewrap
@pytest.mark.parametrize(
    "experiment", [pytest.param(name, marks=() if name == "tools" else pytest.mark.slow) for name in EXPERIMENTS]
)
def test_it_is_trained_evaluated_and_resumed_exactly(experiment: str, random_model: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    chosen = [f"experiment={experiment}", *EXPERIMENTS[experiment], *SETTINGS, f"model.path='{random_model}'"]
    assert main(["train", *chosen, f"run.dir='{run_dir}'"]) == 0
    metrics = rows(run_dir / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [0, 1]
    assert max(row["policy/logprob_gap_max"] for row in metrics) <= 1e-4
    assert all(row["gradients/norm"] > 0 for row in metrics)
    assert len(list(read_trajectories(run_dir / "trajectories" / "train-000000.jsonl"))) == 4

    last = run_dir / "checkpoints" / "step-000002"
    assert main(["eval", "--ckpt", str(last), NAMED, f"run.dir='{tmp_path / 'eval'}'"]) == 0
    result = json.loads((tmp_path / "eval" / "eval.json").read_text())
    assert result["verdict"] in ("PASS", "FAIL", "INCONCLUSIVE")
    assert result["n"] == 2
    assert result["greedy"]["trained"].keys() == result["sampled"]["trained"].keys() >= {"reward"}

    names = ["metrics.jsonl", "trajectories/train-000001.jsonl", "checkpoints/step-000002/model.safetensors"]
    whole = {name: (run_dir / name).read_bytes() for name in names}
    shutil.rmtree(last)
    assert main(["resume", str(run_dir), NAMED]) == 0
    assert [name for name in names if (run_dir / name).read_bytes() != whole[name]] == []
