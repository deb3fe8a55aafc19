"""Whole runs through the command line's own main, on a small world, from a hasty warm start, which is made once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgrpo.cli.main import main

SMALL_DIARIES = [
    "experiment=memory",
    "task.train_diaries=24",
    "task.dev_diaries=6",
    "task.test_diaries=11",
    "task.long_days=12",
    "model.worlds=45",
    "model.tasks_per_world=40",
    "model.tokenizer_worlds=2",
    "run.screen=quiet",
    "run.log_with=[]",
]
"""A few diaries, and a warm start of twenty CPU-seconds, after which the policy writes, though hardly ever rightly."""
SMALL_WORLD = [
    "experiment=almanac",
    "task.num_companies=40",
    "task.dev_companies=5",
    "task.test_companies=40",
    "rollout=almanac_tiny",
    "optimizer=tiny",
    "hardware.threads=1",
    "run.screen=quiet",
    "run.log_with=[]",
]
"""A world that is built in a second; 440 test questions. What the tiny model chooses is also for its folder."""

Run = Callable[..., Path]


HASTY = ["model.worlds=30", "model.tasks_per_world=40"]
"""A warm start of ten CPU-seconds: it searches and answers in the right format, though hardly ever rightly."""


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Start weights that know the format; computed the first time, then they are cached."""
    return start_of([*SMALL_WORLD, *HASTY], tmp_path_factory.mktemp("hasty start"))


@pytest.fixture(scope="session")
def good_start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default start weights, which often answer rightly: two CPU-minutes the first time."""
    return start_of(SMALL_WORLD, tmp_path_factory.mktemp("good start"))


def start_of(settings: list[str], run_dir: Path) -> Path:
    """The folder of the weights that a run starts from, made where need be."""
    arguments = [
        f"run.dir='{run_dir}'",
        "run.max_steps=1",
        "run.final_eval=false",
        "run.eval_every=0",
    ]
    assert main(["train", *settings, *arguments]) == 0
    state = json.loads((run_dir / "checkpoints" / "step-000001" / "trainer" / "state.json").read_text())
    return Path(state["state"]["start"]["folder"])


@pytest.fixture
def train(start: Path, tmp_path: Path) -> Run:
    """train(*overrides) -> the run directory of a short run from the start weights that ended with exit code 0."""

    def run(*overrides: str, name: str = "run", code: int = 0) -> Path:
        return run_from(start, tmp_path / name, *overrides, code=code)

    return run


@pytest.fixture
def train_well(good_start: Path, tmp_path: Path) -> Run:
    """As `train`, from the default start weights."""

    def run(*overrides: str, name: str = "run", code: int = 0) -> Path:
        return run_from(good_start, tmp_path / name, *overrides, code=code)

    return run


def run_from(start: Path, run_dir: Path, *overrides: str, code: int = 0) -> Path:
    arguments = ["model=path", f"model.path='{start}'", f"run.dir='{run_dir}'"]
    assert main(["train", *SMALL_WORLD, *arguments, *overrides]) == code
    return run_dir


def run_once(start: Path, tmp_path_factory: pytest.TempPathFactory, *overrides: str) -> Path:
    """`run_from` for all tests of a module: the threads of torch, which a run sets, are what they were."""
    threads = torch.get_num_threads()
    run_dir = run_from(start, tmp_path_factory.mktemp("once") / "run", *overrides)
    torch.set_num_threads(threads)
    return run_dir


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
