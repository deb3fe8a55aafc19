"""What the verbs say when a run is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgrpo.cli import verbs
from agentgrpo.config.settings import RunSettings
from agentgrpo.core.commands import shell_line
from agentgrpo.core.errors import BudgetSpent
from agentgrpo.records.run_dir import RunDir
from agentgrpo.records.screen import Screen
from agentgrpo.run.diagnostics import Unwatched
from agentgrpo.run.parts import Progress
from agentgrpo.run.resume import noting_stop
from agentgrpo.training.process_group import Alone


def ended(run_dir: Path, *, screen: str = "plain", error: Exception | None = None, config: str = "run: {}\n") -> Path:
    """A run of 2 steps, the last of which left a checkpoint."""
    (run_dir / "checkpoints" / "step-000002").mkdir(parents=True)
    (run_dir / "config.yaml").write_text(config)
    run = RunSettings(dir=str(run_dir), max_steps=2, screen=screen)
    progress = Progress()
    with noting_stop(run_dir, Alone(), progress, run.max_steps):
        progress.step = 2
        if error is not None:
            raise error
    verbs._finish(run, None, Alone(), Screen(screen), Unwatched(), None, progress.step)
    return run_dir


def test_what_comes_next_is_one_line_in_plain_mode_and_none_in_quiet_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(tmp_path / "quiet", screen="quiet")
    assert capsys.readouterr().out == ""
    run = ended(tmp_path / "a run")
    assert capsys.readouterr().out == (
        f"next: {shell_line('view', str(run))}\nor: {shell_line('eval', '--ckpt', f'{run}/checkpoints/step-000002')}\n"
    )


def test_what_comes_next_names_code_of_the_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ended(tmp_path / "run", config="run: {}\nenvironment: {name: 'my_env:Shop'}\n")
    assert capsys.readouterr().out.endswith(
        f"agentgrpo eval --ckpt {run}/checkpoints/step-000002 environment.name=my_env:Shop\n"
    )


def test_why_a_run_was_stopped_is_in_its_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BudgetSpent, match="spent"):
        ended(tmp_path / "run", error=BudgetSpent("spent", "budget.per_run.money=2"))
    assert capsys.readouterr().out == ""
    assert RunDir(tmp_path / "run").stopped == {
        "step": 2,
        "max_steps": 2,
        "reason": "spent",
        "raised": "budget.per_run.money=2",
    }
