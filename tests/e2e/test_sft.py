"""`agentgrpo sft` from the command line: trained, evaluated, resumed, shown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agentgrpo.cli.main import main
from tests.e2e.conftest import SMALL_WORLD, rows
from tests.run.tiny_run import recorded

SHORT = [
    "run.keep_last=9",
    "run.max_steps=3",
    "run.eval_every=0",
    "run.eval.tasks=4",
    "rollout.tasks_per_step=4",
    "run.checkpoint_every=1",
]


def sft(start: Path, run_dir: Path, *overrides: str, code: int = 0) -> Path:
    model = ["model=path", f"model.path='{start}'", f"run.dir='{run_dir}'"]
    assert main(["sft", *SMALL_WORLD, *model, *SHORT, *overrides]) == code
    return run_dir


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """Twenty conversations."""
    path = tmp_path / "my chats.jsonl"
    said = [("user", "Who is {}?"), ("assistant", "<answer>Castin {}</answer>")]
    rows = [{"messages": [{"role": r, "content": text.format(i)} for r, text in said]} for i in range(20)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def of_chats(path: Path) -> list[str]:
    return ["demonstrations=chat", f"demonstrations.path='{path}'", "rollout.stratify_by=null"]


@pytest.mark.slow
def test_a_file_of_chats_is_learned_evaluated_and_resumed(
    start: Path, chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = sft(start, tmp_path / "whole", *of_chats(chats))
    losses = [row["loss"] for row in rows(whole / "metrics.jsonl")]
    assert losses[2] < losses[0]
    result = json.loads((whole / "eval.json").read_text())
    assert (result["n"], "oracle" in result) == (4, True)
    killed = Path(shutil.copytree(whole, tmp_path / "killed"))
    for step in (2, 3):
        shutil.rmtree(killed / "checkpoints" / f"step-{step:06d}")
    assert main(["resume", str(killed)]) == 0
    assert recorded(killed) == recorded(whole)
    assert main(["replay", str(whole), "--step", "1", "--all"]) == 2
    assert "holds demonstrations, which no policy has sampled" in capsys.readouterr().err
    assert main(["show", str(whole)]) == 0
    assert "loss  " in capsys.readouterr().out
    assert main(["eval", "--ckpt", str(whole / "checkpoints" / "step-000003"), f"run.dir='{tmp_path / 'eval'}'"]) == 0
    assert json.loads((tmp_path / "eval" / "eval.json").read_text())["greedy"] == result["greedy"]


def test_the_oracle_of_the_task_set_is_imitated(start: Path, tmp_path: Path) -> None:
    run = sft(start, tmp_path / "run", "run.final_eval=false")
    for row in rows(run / "metrics.jsonl"):
        assert (row["agent/exit_answered"], row["episodes/total"], row["groups/informative"]) == (1.0, 4.0, 1.0)
    [_, *episodes] = rows(run / "trajectories" / "train-000000.jsonl")
    assert [e["answer"] for e in episodes] == [e["references"][0] for e in episodes]


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["demonstrations=none"], "sft imitates demonstrations, and demonstrations=none"),
        (["algorithm=grpo"], "algorithm.loss=clipped with demonstrations=oracle"),
        (["demonstrations=chat", "demonstrations.path=none.jsonl"], "'none.jsonl' is not a file"),
    ],
)
def test_what_does_not_go_together_is_refused(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], why: str
) -> None:
    sft(start, tmp_path / "run", *overrides, code=2)
    assert why in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_task_set_without_a_demonstrator_is_refused(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "questions.jsonl").write_text('{"id": "a", "question": "Who?", "answers": ["Anna"]}\n')
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "text": "Anna."}\n')
    own = ["task=jsonl", f"task.questions='{tmp_path}/questions.jsonl'", f"task.corpus='{tmp_path}/corpus.jsonl'"]
    model = ["model=path", f"model.path='{start}'", f"run.dir='{tmp_path / 'run'}'"]
    assert main(["sft", "experiment=none", *own, *model]) == 2
    assert "demonstrations=oracle, and this task set demonstrates nothing" in capsys.readouterr().err


@pytest.mark.slow
def test_demonstrations_that_have_changed_are_not_gone_on_with(
    start: Path, chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = sft(start, tmp_path / "run", *of_chats(chats), "run.max_steps=1", "run.final_eval=false")
    chats.write_text(chats.read_text().replace("Castin", "Roka"))
    assert main(["resume", str(run), "run.max_steps=2"]) == 4
    assert "the demonstrations changed" in capsys.readouterr().err


@pytest.mark.slow
def test_how_episodes_would_be_sampled_has_no_part_in_it(start: Path, tmp_path: Path) -> None:
    """Neither the temperature nor what makes sampler and trainer differ, for which GRPO would correct."""
    settings = ["rollout.temperature=1.0", "rollout.temperature=0.5", "hardware.mixed_precision=bf16"]
    runs = [sft(start, tmp_path / str(i), "run.max_steps=1", "run.final_eval=false", s) for i, s in enumerate(settings)]
    first = [rows(run / "metrics.jsonl")[0] for run in runs]
    assert first[1]["loss"] == first[0]["loss"]
    assert first[2]["loss"] == pytest.approx(first[0]["loss"], rel=1e-2)
    assert [tag for row in first for tag in row if "correction" in tag or "logprob_gap" in tag] == []
