"""What is written down of why a run has ended, and what is not."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from agentgrpo.core.errors import ConfigError, GuardHalt, StorageError
from agentgrpo.run.parts import Progress
from agentgrpo.run.resume import noting_stop
from agentgrpo.training.process_group import Alone


class Second(Alone):
    """Another process of the run."""

    rank = 1


def ended(run_dir: Path, error: Exception | None, world: Alone | None = None) -> object:
    """What is there of it after a run of 4 steps that got to step 2."""
    progress = Progress()
    with suppress(type(error or ValueError)), noting_stop(run_dir, world or Alone(), progress, 4):
        progress.step = 2
        if error is not None:
            raise error
    path = run_dir / "stopped.json"
    return json.loads(path.read_text()) if path.exists() else None


def test_a_stop_is_noted_until_the_run_goes_on(tmp_path: Path) -> None:
    noted = {"step": 2, "max_steps": 4, "reason": "kl is 2", "raised": ""}
    assert ended(tmp_path, GuardHalt("kl is 2"), Second()) is None
    assert ended(tmp_path, GuardHalt("kl is 2")) == noted
    assert ended(tmp_path, None) is None


def test_what_is_refused_before_it_has_begun_leaves_nothing(tmp_path: Path) -> None:
    assert ended(tmp_path, ConfigError("no")) is None
    (tmp_path / "metrics.jsonl").touch()
    assert ended(tmp_path, ConfigError("no")) == {"step": 2, "max_steps": 4, "reason": "no", "raised": ""}


def test_a_full_disk_does_not_hide_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise StorageError("no space")

    monkeypatch.setattr("agentgrpo.records.run_dir.write_atomic", full)
    with pytest.raises(GuardHalt, match="kl is 2"), noting_stop(tmp_path, Alone(), Progress(), 4):
        raise GuardHalt("kl is 2")
