"""Whole runs in what others have published: the same twice, evaluated, resumed, replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgrpo.cli.main import main
from tests.environments.program.conftest import desk

__all__ = ["desk"]

SHORT = [
    *("model.path=model", "algorithm.advantage=none", "rollout.max_tokens=24", "rollout.tasks_per_step=2"),
    *("rollout.group_size=2", "hardware.threads=1", "run.max_steps=2", "run.eval_every=0", "run.eval.tasks=2"),
    *("run.screen=quiet", "run.log_with=[]", "task.train_tasks=8", "task.dev_tasks=2", "task.test_tasks=4"),
]
PUBLISHED = {
    "reasoning_gym": ["environment.dataset=[chain_sum,leg_counting]", "environment.settings.chain_sum.max_terms=3"],
    "textarena": ["environment.game=[GuessTheNumber-v0,TicTacToe-v0]"],
    "gymnasium": ["environment.id=Blackjack-v1", "environment.actions=[stick,hit]"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_run_is_the_same_twice_and_is_evaluated_resumed_and_replayed(
    name: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(name)
    for run in ("one", "two"):
        assert main(["train", f"environment={name}", *PUBLISHED[name], *SHORT, f"run.dir={run}"]) == 0
    compared = ["metrics.jsonl", "eval.json", "checkpoints/step-000002/model.safetensors"]
    compared += [f"trajectories/train-{step:06d}.jsonl" for step in range(2)]
    assert [n for n in compared if (desk / "one" / n).read_bytes() != (desk / "two" / n).read_bytes()] == []
    found = json.loads((desk / "one" / "eval.json").read_text())
    assert all("score" in row["trained"] for row in found["greedy"]["kinds"].values())
    assert len(found["greedy"]["kinds"]) == (1 if name == "gymnasium" else 2)
    assert main(["resume", "one", "run.max_steps=3"]) == 0
    assert main(["eval", "--ckpt", "one/checkpoints/step-000003", "run.dir=again"]) == 0
    capsys.readouterr()
    assert main(["replay", "one", "--all"]) == 0
    assert "no divergence" in capsys.readouterr().out


def test_its_tasks_and_its_reward_come_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, said in PUBLISHED.items():
        assert main(["train", f"environment={name}", said[0], "model.path=m", "--cfg", "job"]) == 0
        shown = capsys.readouterr()
        assert f"model.path, environment={name}: your own, so experiment=none" in shown.err
        assert f"task:\n  name: {name}\n" in shown.out
        assert "environment.reward" in shown.out
