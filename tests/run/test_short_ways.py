"""The ways are short: how many of our own frames are on the stack when a run gets to what it is for."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import agentgrpo
from agentgrpo import __main__
from agentgrpo.training.trainer import Trainer
from tests.engines import tiny

PACKAGE = Path(agentgrpo.__file__).parent
TO_THE_STEP = 12
TO_THE_FORMULA = 17


def own(frames: Iterable[traceback.FrameSummary]) -> list[str]:
    """file:function of those that are ours, outermost first."""
    return [
        f"{path.relative_to(PACKAGE).as_posix()}:{frame.name}"
        for frame in frames
        if (path := Path(frame.filename)).is_relative_to(PACKAGE)
    ]


@pytest.fixture
def ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, list[str]]:
    """Of a run of one step: the way to Trainer.update, and from there to a formula of a loss."""
    tiny.model("qwen2").save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    questions = [
        f'{{"id": "q{i}", "question": "What is {i}?", "answers": ["{i}"], "split": "train"}}\n' for i in range(4)
    ]
    (tmp_path / "q.jsonl").write_text("".join(questions))
    (tmp_path / "c.jsonl").write_text('{"id": "d", "text": "One is 1."}\n')
    found: dict[str, list[str]] = {"step": [], "formula": []}
    update = Trainer.update

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename == str(PACKAGE / "grpo" / "losses.py"):
            way = own(traceback.extract_stack(frame))
            found["formula"] = min(found["formula"] or way, way, key=len)

    def watched(*given: Any, **named: Any) -> Any:
        found["step"] = [*own(traceback.extract_stack()), "training/trainer.py:update"]
        sys.setprofile(look)
        try:
            return update(*given, **named)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(Trainer, "update", watched)
    monkeypatch.chdir(tmp_path)
    settings = ["experiment=none", "task.questions=q.jsonl", "task.corpus=c.jsonl", "model=path", "model.path=model"]
    # Whatever a random policy says is worth nothing: the KL term is what it is trained on nevertheless.
    settings += [
        "algorithm=grpo",
        "algorithm.advantage=none",
        "model.describe_tools=false",
        "rollout.tasks_per_step=2",
        "rollout.group_size=3",
    ]
    settings += ["rollout.max_tokens=8", "hardware.threads=1", "run.dir=run", "run.max_steps=1"]
    settings += ["run.eval_every=0", "run.final_eval=false", "run.screen=quiet"]
    monkeypatch.setattr(sys, "argv", ["agentgrpo", "train", *settings])
    assert __main__.main() == 0
    return found


def test_few_frames_lie_between_main_the_training_step_and_the_loss(ways: Mapping[str, list[str]]) -> None:
    step, formula = ways["step"], ways["formula"]
    assert step[0] == "__main__.py:main"
    assert len(step) <= TO_THE_STEP, "\n".join(step)
    assert formula[: len(step)] == step
    assert len(formula) <= TO_THE_FORMULA, formula
