"""What `agentgrpo eval` is told of: a run, other questions, one question, code of the user's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import agentgrpo
from agentgrpo.cli.main import main
from agentgrpo.core.types import Episode
from agentgrpo.records.run_dir import RunDir
from tests.engines import tiny

SMALL = [
    *("rollout.tasks_per_step=2", "rollout.group_size=2", "rollout.max_tokens=4", "environment.max_context=256"),
    *("environment.min_context_left=8", "run.eval_every=0", "run.final_eval=false", "run.checkpoint_every=1"),
    *("run.max_steps=1", "hardware.threads=1", "run.screen=plain", "run.log_with=[]", "model.renderer=react"),
]


class Shop:
    """A user's environment."""

    def reset(self, question: str = "", **columns: object) -> str:
        return "Buy it."

    def buy(self, item: str) -> str:
        """Buys it."""
        return item

    def get_reward(self) -> float:
        return 0.5


class Plain:
    """One that says nowhere what an attempt was worth."""

    def look(self, item: str) -> str:
        """Looks at it."""
        return item


def same(instruction: str, response: str, reward_model: object, extra_fields: object) -> dict[str, float]:
    return {"score": 0.25}


def half(episode: Episode) -> float:
    return 0.5


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model M and questions q.jsonl, o.jsonl and one.jsonl."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    tiny.model().save_pretrained("M")
    tiny.tokenizer().save_pretrained("M")

    def write(name: str, rows: list[dict[str, object]]) -> None:
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    rows = [{"question": f"{i}+1?", "answers": [str(i + 1)], "split": "train" if i < 9 else "test"} for i in range(12)]
    write("q.jsonl", rows)
    write("o.jsonl", [row | {"question": f"Of others: {row['question']}"} for row in rows])
    write("one.jsonl", rows[:10])
    return tmp_path


def test_a_run_is_evaluated_on_other_questions_and_on_one(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "model.path=M", "task.questions=q.jsonl", "run.dir=r", "rollout.top_k=0", *SMALL]) == 0
    assert main(["eval", "--ckpt", "r", "run.dir=e", "task=jsonl", "task.questions=o.jsonl", "run.eval.tasks=2"]) == 0
    evaluated = RunDir(Path("e")).config
    assert (evaluated["task"]["questions"], evaluated["model"]["path"]) == ("o.jsonl", "M")
    assert (evaluated["environment"]["max_context"], evaluated["rollout"]["max_tokens"]) == (256, 4)
    assert json.loads(Path("e/evaluated.json").read_text())["ckpt"].endswith("r/checkpoints/step-000001")
    capsys.readouterr()
    assert main(["eval", "--ckpt", "r", "--gate", "run.dir=f", "task.questions=one.jsonl"]) == 10
    said = capsys.readouterr().out
    assert "  9+1?" in said
    assert "reference: 10\n" in said
    assert "one question compares no policies" in said
    assert not Path("f/eval.json").exists()


def test_from_python_with_code_of_ones_own(desk: Path) -> None:
    run = agentgrpo.train("M", "q.jsonl", rewards=[half], environment=Shop, judge=same, run_dir="r", overrides=SMALL)
    names = [run.config[group]["name"].rpartition(":")[2] for group in ("environment", "judge")]
    assert (names, [*run.config["reward"]["terms"]]) == (["Shop", "same"], ["half"])
    more = agentgrpo.resume(run, rewards=[half], environment=Shop, judge=same, overrides=["run.max_steps=2"])
    assert [row["reward/mean"] for row in more.metrics()] == [0.5, 0.5]


def test_a_class_that_pays_nothing_is_told_so_before_it_runs(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", f"environment={__name__}:Plain", "model.path=M", "task.questions=q.jsonl", *SMALL]
    assert main([*words, "run.dir=r"]) == 2
    assert "reports no value of an attempt" in capsys.readouterr().err
    assert main([*words, "run.dir=s", "reward=correctness"]) == 0
