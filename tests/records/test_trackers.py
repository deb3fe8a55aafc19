"""Boards are for watching: they start where they are wanted, never double a step and never stop a run."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.records import trackers
from agentgrpo.records.trackers import Trackers
from tests.records.wandb_file import history

CONFIG = {"run": {"seed": 7, "log_with": ["tensorboard"]}, "task": "almanac"}


def board(run_dir: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    return events


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path: Path) -> None:
    first = Trackers(log_with=["tensorboard"], run_dir=tmp_path, config=CONFIG)
    for step in range(4):
        first.log({"reward/mean": float(step), "groups/total": 16}, step=step)
    first.close()  # the run is killed here; its last checkpoint is of step 2
    second = Trackers(log_with=["tensorboard"], run_dir=tmp_path, config=CONFIG, start_step=2)
    for step in range(2, 5):
        second.log({"reward/mean": 10.0 + step}, step=step)
    second.close()
    events = board(tmp_path)
    assert [(e.step, e.value) for e in events.Scalars("reward/mean")] == [
        (0, 0.0),
        (1, 1.0),
        (2, 12.0),
        (3, 13.0),
        (4, 14.0),
    ]
    (text,) = events.Tensors("config/text_summary")
    assert b"run.seed: 7" in text.tensor_proto.string_val[0]


def test_what_tensorboard_was_told_is_in_its_file_at_once(tmp_path: Path) -> None:
    boards = Trackers(log_with=["tensorboard"], run_dir=tmp_path, config=CONFIG, start_step=3)
    boards.log({"policy/kl": math.nan, "groups/total": 16, "reward/mean": 0.5}, step=3)
    boards.log({"time/train": 2.0}, step=3)
    events = board(tmp_path)  # as after a kill: nothing was closed
    shown = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    boards.close()
    assert math.isnan(shown.pop("policy/kl")[0][1])
    assert shown == {"groups/total": [(3, 16.0)], "reward/mean": [(3, 0.5)], "time/train": [(3, 2.0)]}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tensorbord", r"'tensorbord'; allowed are tensorboard, wandb, .*\. Did you mean 'tensorboard'\?"),
        ("missing_board", "whose package is not installed; pip install missing_board, or leave it out"),
    ],
)
def test_a_board_that_is_not_there_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.setattr(trackers, "NAMES", (*trackers.NAMES, "missing_board"))
    with pytest.raises(ConfigError, match=message):
        Trackers(log_with=["tensorboard", name], run_dir=tmp_path, config=CONFIG)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def broken_board(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, Any]]]:
    """A tracker registered with accelerate that works for one step and then fails for good."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker

    calls: list[tuple[str, Any]] = []

    class Broken(GeneralTracker):  # type: ignore[misc]
        name = "json"  # a package that is installed everywhere
        requires_logging_directory = False
        tracker = None

        def __init__(self, run_name: str) -> None:
            super().__init__()
            calls.append(("init", run_name))

        def store_init_configuration(self, values: dict[str, Any]) -> None:
            calls.append(("config", values))

        def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
            calls.append(("log", (values, step)))
            if step:
                raise ConnectionError("the board is down")

        def finish(self) -> None:
            calls.append(("finish", None))

    monkeypatch.setattr(trackers, "NAMES", (*trackers.NAMES, "json"))
    LOGGER_TYPE_TO_CLASS["json"] = Broken
    yield calls
    del LOGGER_TYPE_TO_CLASS["json"]


def test_a_board_that_fails_is_dropped_with_one_warning(
    tmp_path: Path, broken_board: list[tuple[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    boards = Trackers(log_with=["json", "json"], run_dir=tmp_path, config=CONFIG)
    with caplog.at_level(logging.WARNING):
        for step in range(4):
            boards.log({"x": float(step)}, step=step)
        boards.close()
    assert broken_board == [
        ("init", "agentgrpo"),
        ("config", {"run.seed": 7, "run.log_with": "['tensorboard']", "task": "almanac"}),
        ("log", ({"x": 0.0}, 0)),
        ("log", ({"x": 1.0}, 1)),
    ]
    assert [r.getMessage() for r in caplog.records] == [
        "json is switched off for the rest of the run: ConnectionError: the board is down"
    ]


def test_a_resumed_run_does_not_send_its_configuration_again(
    tmp_path: Path, broken_board: list[tuple[str, Any]]
) -> None:
    boards = Trackers(log_with=["json"], run_dir=tmp_path, config=CONFIG, start_step=3)
    boards.close()
    boards.close()
    assert broken_board == [("init", "agentgrpo"), ("finish", None)]


@pytest.mark.slow  # some ten seconds where wandb is installed
def test_an_offline_run_of_wandb_has_every_step_after_a_resume_too(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    program = """
import sys
from pathlib import Path
from agentgrpo.records.trackers import Trackers
first, last = map(int, sys.argv[2:])
boards = Trackers(log_with=["wandb"], run_dir=Path(sys.argv[1]), config={"run": {"seed": 7}}, start_step=first)
for step in range(first, last):
    boards.log({"reward/mean": step + 0.5, **{f"tag/{number}": float(step) for number in range(100)}}, step=step)
    boards.log({"time/train": 2.0}, step=step)
boards.close()
"""
    offline = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    for first, last in ((0, 40), (30, 45)):
        arguments = [sys.executable, "-c", program, str(tmp_path), str(first), str(last)]
        done = subprocess.run(arguments, env=offline, capture_output=True, text=True, check=True)
        assert "switched off" not in done.stderr
    logs = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len({log.name for log in logs}) == 1  # it went on in the run it began
    steps = [history(log) for log in logs]
    assert [list(shown) for shown in steps] == [list(range(40)), list(range(30, 45))]
    for shown in steps:
        assert all(row["reward/mean"] == step + 0.5 and row["time/train"] == 2.0 for step, row in shown.items())


def test_without_boards_nothing_heavy_is_imported(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from agentgrpo.records.trackers import Trackers
boards = Trackers(log_with=[], run_dir=Path(sys.argv[1]), config={})
boards.log({"x": 1.0}, step=0)
boards.close()
print(sorted({"torch", "accelerate", "tensorboard"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
