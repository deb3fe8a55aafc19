"""A first run with a model and questions of one's own: what cannot be trained on is said before the first step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgrpo.cli.main import main
from agentgrpo.records.run_dir import RunDir
from agentgrpo.records.trajectories import read_trajectories
from tests.e2e.test_models import made

SETTINGS = [
    *("experiment=none", "model=path", "model.path=start", "task.questions=questions.jsonl"),
    *("environment=tools", "tools=calculator", "reward=tools"),
    *("engine.max_context=1024", "environment.min_context_left=8", "environment.max_turns=2"),
    *("rollout.tasks_per_step=2", "rollout.group_size=2", "rollout.max_tokens=4"),
    *("run.max_steps=2", "run.eval_every=0", "run.eval.tasks=2", "run.dir=r", "hardware.threads=1"),
]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    made("qwen3", Path("start"))
    generation = {"eos_token_id": [265, 267]}  # <|endoftext|>, <|im_end|>
    Path("start/generation_config.json").write_text(json.dumps(generation))


def write(*long: int) -> None:
    """Eight questions, of which some have a thousand words."""
    rows = [
        {"id": f"q{i}", "question": f"{i} + 1 = ?" + f" word{i}" * 1000 * (i in long), "answers": [str(i + 1)]}
        for i in range(8)
    ]
    splits = ["train"] * 5 + ["dev"] + ["test"] * 2
    lines = (json.dumps({**row, "split": split}) for row, split in zip(rows, splits, strict=True))
    Path("questions.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_a_run_names_what_it_leaves_out_and_what_it_takes_over(capsys: pytest.CaptureFixture[str]) -> None:
    write(0, 3, 7)
    assert main(["train", *SETTINGS]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    [trained] = [note for note in notes if "training tasks" in note]
    assert trained.startswith("note: 2 of 5 training tasks open with more than 1016 tokens, the longest with ")
    assert trained.endswith(
        "and engine.max_context=1024, less environment.min_context_left=8, leaves no room for a turn; left out of "
        "training: q0, q3. Raise engine.max_context, or shorten them"
    )
    [tested] = [note for note in notes if "test tasks" in note]
    assert tested.startswith("note: 1 of 2 test tasks open with ")
    assert "; evaluated as unanswered: q7. " in tested
    assert "note: generation_config.json ends turns with '<|endoftext|>' (265) too, and so does this run" in notes
    tried = [(file.name, r.task) for file in RunDir(Path("r")).trajectory_files() for r in read_trajectories(file.path)]
    assert {task for name, task in tried if name.startswith("train")} <= {"q1", "q2", "q4"}
    assert {task for name, task in tried if name.startswith("eval")} == {"q6", "q7"}


def test_a_run_of_which_nothing_is_left_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    write(0, 1, 2, 3, 4)
    assert main(["train", *SETTINGS]) == 2
    assert "task q0 opens with " in capsys.readouterr().err
    write(0, 1, 2, 3)
    assert main(["train", *SETTINGS]) == 2
    assert "it has 1 training tasks, fewer than rollout.tasks_per_step=2" in capsys.readouterr().err
