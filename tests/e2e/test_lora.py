"""Runs that train an adapter or a part of the model: killed, resumed, evaluated, exported."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentgrpo.cli.main import main
from tests.e2e.conftest import SMALL_WORLD, Run, rows

SHORT = [
    "run.max_steps=3",
    "run.checkpoint_every=1",
    "run.keep_last=4",
    "run.eval_every=0",
    "run.eval.tasks=6",
    "rollout.tasks_per_step=4",
    "rollout.group_size=4",
]
LORA = [*SHORT, "model.lora.rank=4", "optimizer.lr=0.01", "algorithm.kl_coef=0.02"]
ADAPTER = "checkpoints/step-000003/adapter_model.safetensors"
RECORDS = ["metrics.jsonl", "eval.json", *(f"trajectories/train-{step:06d}.jsonl" for step in range(3))]


def same_bytes(whole: Path, other: Path, *names: str) -> None:
    assert [n for n in (*names, *RECORDS) if (whole / n).read_bytes() != (other / n).read_bytes()] == []
    ours, theirs = (
        load_file(d / "checkpoints" / "step-000003" / "trainer" / "optimizer.safetensors") for d in (whole, other)
    )
    assert ours.keys() == theirs.keys()
    assert [n for n in ours if "rng/" not in n and not torch.equal(ours[n], theirs[n])] == []


@pytest.fixture(scope="module")
def finished(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps, read by several tests and changed by none."""
    threads, run_dir = torch.get_num_threads(), tmp_path_factory.mktemp("lora") / "finished"
    assert main(["train", *SMALL_WORLD, "model=path", f"model.path='{start}'", f"run.dir='{run_dir}'", *LORA]) == 0
    torch.set_num_threads(threads)
    return run_dir


@pytest.mark.slow
def test_an_adapter_is_trained_and_the_engine_samples_from_it(finished: Path) -> None:
    metrics = rows(finished / "metrics.jsonl")
    assert max(row["policy/logprob_gap_max"] for row in metrics) <= 1e-4
    assert metrics[0]["policy/kl"] == 0  # against the model without it, which it still is
    assert metrics[2]["policy/kl"] > 1e-5
    names = {p.name for p in (finished / "checkpoints" / "step-000003").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md", "trainer", "manifest.json"} <= names
    assert "model.safetensors" not in names
    first, last = (load_file(finished / "checkpoints" / f"step-00000{n}" / "adapter_model.safetensors") for n in (0, 3))
    assert all(torch.equal(first[n], torch.zeros_like(t)) for n, t in first.items() if "lora_B" in n)
    assert not any(torch.equal(first[n], last[n]) for n in first)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_and_resumed_it_is_the_same_run(finished: Path, start: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "killed"
    arguments = ["model=path", f"model.path='{start}'", f"run.dir='{run_dir}'", *LORA]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "agentgrpo", "train", *SMALL_WORLD, *arguments],
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 200
    while not (run_dir / "checkpoints" / "step-000001").exists() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert main(["resume", str(run_dir)]) == 0
    same_bytes(finished, run_dir, ADAPTER, "checkpoints/step-000003/adapter_config.json")


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_as_its_run_did(finished: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    assert main(["eval", "--ckpt", str(finished / "checkpoints" / "step-000003"), f"run.dir='{again}'"]) == 0
    ours, theirs = (json.loads((d / "eval.json").read_text()) for d in (again, finished))
    assert ours == theirs


@pytest.mark.slow
def test_exported_it_needs_no_peft(
    finished: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, out = finished / "checkpoints" / "step-000003", tmp_path / "models" / "mine"
    assert main(["export", "--ckpt", str(checkpoint), "--merge", str(out)]) == 0
    assert f"{out} holds the model of {checkpoint}" in capsys.readouterr().err
    ids = AutoTokenizer.from_pretrained(out)("Question: Who founded Velmor?\n<search>", return_tensors="pt").input_ids
    program = f"""
import sys
sys.modules["peft"] = None
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({str(out)!r}).double()
torch.save(model(torch.tensor({ids.tolist()})).logits.log_softmax(-1).detach(), {str(tmp_path / "logprobs")!r})
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True)
    merged = torch.load(tmp_path / "logprobs")
    with torch.no_grad():
        adapted = AutoModelForCausalLM.from_pretrained(checkpoint).double()(ids).logits.log_softmax(-1)
        base = AutoModelForCausalLM.from_pretrained(start)(ids).logits.log_softmax(-1)
    assert float((merged - adapted).abs().max()) <= 1e-5
    assert float((merged - base).abs().max()) > 1e-2
    assert main(["export", "--ckpt", str(checkpoint), "--merge", str(out)]) == 2
    assert "exists, and nothing is overwritten" in capsys.readouterr().err


@pytest.mark.slow
def test_without_its_base_it_is_not_read(
    train: Run, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "base"
    shutil.copytree(start, base)
    (base / "manifest.json").unlink()
    run_dir = train(*LORA, "run.final_eval=false", f"model.path='{base}'")
    checkpoint = run_dir / "checkpoints" / "step-000003"
    config = base / "generation_config.json"
    config.write_text(config.read_text().replace("{", "{ ", 1))
    evaluation = f"run.dir='{tmp_path / 'eval'}'"
    for command in (
        ["resume", str(run_dir), "run.max_steps=4"],
        ["eval", "--ckpt", str(checkpoint), evaluation],
        ["export", "--ckpt", str(checkpoint), "--merge", str(tmp_path / "out")],
    ):
        assert main(command) == 4
        assert (
            f"needs the start weights, and {base} no longer holds them; put the folder back" in capsys.readouterr().err
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        ["model.lora.rank=4", "algorithm.reference=ema", "algorithm.reference_decay=0.5"],
        ["model.freeze=[embeddings,'model.layers.0.*']", "algorithm.reference=periodic", "algorithm.reference_every=2"],
    ],
    ids=["ema", "periodic"],
)
def test_a_moving_reference_goes_on_where_it_was(train: Run, keys: list[str]) -> None:
    arguments = [*SHORT, "algorithm.kl_coef=0.05", "run.final_eval=false", *keys]
    whole, half = train(*arguments, name="whole"), train(*arguments, name="half")
    for step in (2, 3):
        shutil.rmtree(half / "checkpoints" / f"step-{step:06d}")
    assert main(["resume", str(half)]) == 0
    compared = ["metrics.jsonl", "trajectories/train-000002.jsonl"]
    compared += ["checkpoints/step-000003/trainer/optimizer.safetensors"]
    assert [n for n in compared if (whole / n).read_bytes() != (half / n).read_bytes()] == []
    tensors = load_file(whole / "checkpoints" / "step-000003" / "trainer" / "optimizer.safetensors")
    assert any(n.startswith("reference/") for n in tensors)


@pytest.mark.slow
def test_what_is_frozen_comes_out_as_it_went_in(train: Run, start: Path) -> None:
    run_dir = train(*SHORT, "run.final_eval=false", "model.freeze=[embeddings,'*.mlp.*']")
    before, after = (
        load_file(start / "model.safetensors"),
        load_file(run_dir / "checkpoints/step-000003/model.safetensors"),
    )
    kept = {n for n in before if torch.equal(before[n], after[n])}
    assert kept == {n for n in before if "embed_tokens" in n or ".mlp." in n}


@pytest.mark.slow
def test_what_cannot_be_trained_is_a_line(train: Run, start: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for override, message in (
        ("model.lora.targets=[w_proj]", "model.lora.targets has 'w_proj'; the linear layers"),
        ("model.freeze=[head]", "model.freeze=[head] with model.lora: nothing but the adapter trains"),
        ("model.lora.dropout=0.1", "unknown key model.lora.dropout; allowed are rank, alpha, targets"),
    ):
        train("model.lora.rank=4", override, code=2)
        assert message in capsys.readouterr().err
    train("model.freeze=[layer_7]", code=2)
    assert "model.freeze has 'layer_7', which names no weights" in capsys.readouterr().err
