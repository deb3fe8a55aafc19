"""A short run from end to end: what it leaves on disk, and the laws that must hold over all of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentgrpo.cli.main import main
from agentgrpo.records.trajectories import read_trajectories
from tests.e2e.conftest import SMALL_WORLD, Run, rows, run_once

SHORT = ["run.max_steps=4", "run.checkpoint_every=2", "run.eval_every=2", "run.eval_tasks=8", "run.eval.tasks=20"]
STEP = ["rollout.tasks_per_step=4", "rollout.group_size=4"]


@pytest.fixture(scope="module")
def once(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_once(start, tmp_path_factory, *SHORT, *STEP)


@pytest.fixture
def finished(once: Path, tmp_path: Path) -> Path:
    """A run that has ended, each test's own copy, where `train` puts its first one."""
    return Path(shutil.copytree(once, tmp_path / "run"))


def test_a_run_leaves_what_scripts_rely_on(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = rows(finished / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [0, 1, 2, 3]
    assert sorted(p.name for p in (finished / "checkpoints").iterdir()) == ["step-000002", "step-000004"]
    assert sorted(p.name for p in (finished / "trajectories").glob("train-*.jsonl") if "timings" not in p.name) == [
        f"train-{step:06d}.jsonl" for step in range(4)
    ]
    assert all("time/" not in tag for row in metrics for tag in row)
    assert {"dev/reward", "dev/correctness"} <= metrics[2].keys()  # of the weights the step began with
    for tag in ("reward/mean", "reward/std", "reward/term/correctness", "gradients/norm", "policy/entropy",
                "tokens/trainable_ratio", "tool_turns/mean", "groups/degenerate", "agent/web_searches"):  # fmt: skip
        assert tag in metrics[0], tag
    result = json.loads((finished / "eval.json").read_text())
    assert result["verdict"] in ("PASS", "FAIL", "INCONCLUSIVE")
    assert result["n"] == 20
    for mode in ("greedy", "sampled"):
        for name in ("correctness", "search_rounds", "web_searches", "vdb_searches", "rerank_calls", "cost"):
            mean, low, high = result[mode]["difference"][name]
            assert low <= mean <= high
            assert mean == pytest.approx(result[mode]["trained"][name] - result[mode]["baseline"][name], abs=1e-9)


def test_rollout_and_trainer_agree_over_the_whole_run(finished: Path) -> None:
    """Law 1a: the trainer's log-probs of what was sampled are the engine's."""
    gaps = [
        row["policy/logprob_gap_max"] for row in rows(finished / "metrics.jsonl") if "policy/logprob_gap_max" in row
    ]
    assert len(gaps) == 4
    assert max(gaps) <= 1e-4


def test_trajectories_hold_every_episode_with_exact_masks(finished: Path) -> None:
    records = list(read_trajectories(finished / "trajectories" / "train-000000.jsonl"))
    assert len(records) == 16
    tokenizer = AutoTokenizer.from_pretrained(finished / "checkpoints" / "step-000004")
    for record in records:
        [branch] = record.branches
        for segment in branch.segments:
            assert tokenizer.decode(segment.token_ids, skip_special_tokens=False) == segment.text
        trained = [s.text for s in branch.segments if s.sampled]
        given = [s.text for s in branch.segments if not s.sampled]
        assert all("<information>" not in text for text in trained)
        assert all("</search>" not in text and "</answer>" not in text for text in given)
        assert any(text.endswith(("</search>", "</answer>")) for text in trained)


def test_a_checkpoint_is_a_model_like_any_other(finished: Path) -> None:
    folder = finished / "checkpoints" / "step-000004"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("Answer with searches.\nQuestion: Who founded Velmor?\n", return_tensors="pt")
    text = tokenizer.decode(model.generate(**ids, max_new_tokens=12, do_sample=False)[0])
    assert "<search retriever=" in text or "<answer>" in text
    assert "AutoModelForCausalLM" in (folder / "README.md").read_text()


@pytest.mark.slow
def test_eval_reproduces_the_runs_own_figures(finished: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    assert main(["eval", "--ckpt", str(finished / "checkpoints" / "step-000004"), f"run.dir='{again}'"]) == 0
    ours, theirs = (json.loads((d / "eval.json").read_text()) for d in (again, finished))
    assert ours == theirs


def test_the_gate_sets_the_exit_code(finished: Path, tmp_path: Path) -> None:
    weights = str(finished / "checkpoints" / "step-000004")
    arguments = [
        "--ckpt",
        weights,
        "--baseline",
        weights,
        "--gate",
        f"run.dir='{tmp_path / 'gate'}'",
        "run.eval.tasks=4",
        *("model=path", f"model.path='{weights}'"),
    ]
    assert main(["eval", *SMALL_WORLD, *arguments]) == 10  # a policy against itself


@pytest.mark.slow
def test_the_same_run_twice_is_the_same_to_the_byte(finished: Path, train: Run) -> None:
    again = train(*SHORT, *STEP, name="again")
    compared = ["metrics.jsonl", "eval.json", "checkpoints/step-000004/model.safetensors"]
    compared += [f"trajectories/train-{step:06d}.jsonl" for step in range(4)]
    assert [n for n in compared if (finished / n).read_bytes() != (again / n).read_bytes()] == []


def test_a_used_run_directory_is_refused(finished: Path, train: Run, capsys: pytest.CaptureFixture[str]) -> None:
    before = (finished / "metrics.jsonl").read_bytes()
    train(*SHORT, *STEP, code=2)
    assert "already holds a run" in capsys.readouterr().err
    assert (finished / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_resume_goes_on_where_it_stopped(once: Path, finished: Path) -> None:
    """Half a run and its resumption equal the whole."""
    half = finished
    # take it back by hand to the state after step 2, as a killed process would have left it
    shutil.rmtree(half / "checkpoints" / "step-000004")
    (half / "eval.json").unlink()
    assert main(["resume", str(half)]) == 0
    compared = ["metrics.jsonl", "eval.json", "checkpoints/step-000004/model.safetensors"]
    compared += ["checkpoints/step-000004/trainer/optimizer.safetensors"]
    compared += [f"trajectories/train-{step:06d}.jsonl" for step in range(4)]
    assert [n for n in compared if (once / n).read_bytes() != (half / n).read_bytes()] == []


def test_resume_refuses_other_settings_and_a_directory_without_a_run(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", str(finished), "run.seed=1"]) == 4
    assert "run.seed was 0, is now 1" in capsys.readouterr().err
    assert main(["resume", str(tmp_path / "nothing here")]) == 2


def test_resume_without_a_whole_checkpoint_never_starts_again(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (finished / "checkpoints").iterdir():
        weights = folder / "model.safetensors"
        data = weights.read_bytes()
        weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert main(["resume", str(finished)]) == 4
    assert "holds no valid checkpoint" in capsys.readouterr().err


@pytest.mark.slow
def test_what_fails_between_an_update_and_its_record_leaves_no_checkpoint_of_it(
    finished: Path, train: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stale engine is found after the weights were updated: the run ends there, and goes on from before."""
    from agentgrpo.engines.hf import HFEngine

    score = HFEngine.score

    async def stale(self: HFEngine, token_ids: list[int]) -> list[float]:
        values = await score(self, token_ids)
        return [v - 1.0 for v in values] if self.policy_version == 3 else values

    monkeypatch.setattr(HFEngine, "score", stale)
    run_dir = train(*SHORT, *STEP, name="stale", code=6)
    assert "after step 2 the engine's log-probs differ from the trainer's by 1 nats" in capsys.readouterr().err
    assert len(rows(run_dir / "metrics.jsonl")) == 2
    assert max(p.name for p in (run_dir / "checkpoints").iterdir()) == "step-000002"
    monkeypatch.undo()
    assert main(["resume", str(run_dir)]) == 0
    for name in ("metrics.jsonl", "checkpoints/step-000004/model.safetensors"):
        assert (finished / name).read_bytes() == (run_dir / name).read_bytes(), name


def test_an_evaluation_never_writes_into_a_training_run(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (finished / "config.yaml").read_bytes()
    assert main(["eval", "--ckpt", str(finished / "checkpoints" / "step-000004"), f"run.dir='{finished}'"]) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert (finished / "config.yaml").read_bytes() == before


def test_a_damaged_checkpoint_is_not_evaluated(finished: Path, tmp_path: Path) -> None:
    weights = finished / "checkpoints" / "step-000004" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    assert main(["eval", "--ckpt", str(weights.parent), f"run.dir='{tmp_path / 'eval'}'"]) == 4


@pytest.mark.slow
def test_a_run_without_an_evaluation_can_be_evaluated_and_extended(train: Run, tmp_path: Path) -> None:
    run_dir = train(*SHORT, *STEP, "run.final_eval=false", "run.max_steps=2", name="plain")
    assert not (run_dir / "eval.json").exists()
    checkpoint = run_dir / "checkpoints" / "step-000002"
    assert main(["eval", "--ckpt", str(checkpoint), f"run.dir='{tmp_path / 'eval'}'"]) == 0
    assert main(["resume", str(run_dir), "run.max_steps=3"]) == 0
    assert main(["resume", str(run_dir)]) == 0  # what an earlier resume has set stays set
    assert [row["step"] for row in rows(run_dir / "metrics.jsonl")] == [0, 1, 2]


def test_a_price_of_calls_that_nobody_makes_is_refused(train: Run, capsys: pytest.CaptureFixture[str]) -> None:
    train("+run.eval.prices.reranker=1", code=2)
    assert "prices.reranker: this environment counts web, vdb, rerank; price these" in capsys.readouterr().err


def test_shaped_sampling_is_refused_for_training(train: Run, capsys: pytest.CaptureFixture[str]) -> None:
    train("rollout.top_p=0.9", code=2)
    assert "training scores the whole distribution" in capsys.readouterr().err
