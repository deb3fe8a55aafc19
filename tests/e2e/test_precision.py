"""Whole runs in half precision, with and without float32 weights, and with layers computed twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentgrpo.cli.main import main
from tests.e2e.conftest import Run, rows

SHORT = ["run.max_steps=3", "run.checkpoint_every=1", "run.eval_every=0", "run.final_eval=false"]
STEP = ["rollout.tasks_per_step=4", "rollout.group_size=4", "run.keep_last=3"]


def tensors(run_dir: Path, step: int) -> dict[str, torch.Tensor]:
    folder = run_dir / "checkpoints" / f"step-{step:06d}"
    return load_file(folder / "model.safetensors") | load_file(folder / "trainer" / "optimizer.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [["hardware.dtype=bfloat16"], ["hardware.mixed_precision=bf16", "hardware.activation_checkpointing=true"]],
)
def test_a_run_learns_and_is_resumed_bit_for_bit(train: Run, options: list[str]) -> None:
    whole, half = (train(*SHORT, *STEP, *options, name=name) for name in ("whole", "half"))
    metrics = rows(whole / "metrics.jsonl")
    assert all(row["gradients/norm"] > 0 for row in metrics)
    assert 1e-5 < metrics[0]["policy/logprob_gap_max"] < 0.5  # rounded, and no more than that
    shutil.rmtree(half / "checkpoints" / "step-000003")
    shutil.rmtree(half / "checkpoints" / "step-000002")
    assert main(["resume", str(half)]) == 0
    assert (whole / "metrics.jsonl").read_bytes() == (half / "metrics.jsonl").read_bytes()
    before, after, resumed = tensors(whole, 1), tensors(whole, 3), tensors(half, 3)
    assert all(torch.equal(after[name], resumed[name]) for name in after)
    weights = [name for name in after if "exp_avg" not in name and after[name].ndim == 2]
    assert all(not torch.equal(before[name], after[name]) for name in weights)


@pytest.mark.slow
def test_bfloat16_weights_are_the_rounded_masters(train: Run) -> None:
    run_dir = train(*SHORT, *STEP, "run.max_steps=1", "hardware.dtype=bfloat16")
    found = tensors(run_dir, 1)
    masters = {name.removesuffix(".master"): t for name, t in found.items() if name.endswith(".master")}
    assert len(masters) > 30
    assert all(t.dtype == torch.float32 for t in masters.values())
    assert all(torch.equal(t.bfloat16(), found[name]) for name, t in masters.items())
    assert any(not torch.equal(t, found[name].float()) for name, t in masters.items())
    [step] = rows(run_dir / "metrics.jsonl")
    assert 0 < abs(step["policy/correction_mean"] - 1) < 0.5  # what it rounds is weighed
