"""Whole runs on two processes: the steps of one process, whatever is rolled out when, and one end for both."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from agentgrpo.core.errors import Preempted
from agentgrpo.core.types import Task
from agentgrpo.run.context import RunContext
from agentgrpo.run.parts import Progress
from agentgrpo.run.train import train
from agentgrpo.training.process_group import ProcessGroup, only_first
from tests.run.tiny_run import TinyRun, at_once, rows, saved_steps
from tests.training.several import on

REFILL = {"refill_rounds": 2, "curriculum": "difficulty", "stratify_by": "kind"}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ahead": {"algorithm": {"max_staleness": 1}},
    "refilled, drawn and replayed": {"rollout": REFILL, "algorithm": {"replay_groups": 4}},
    "ahead and refilled": {"rollout": REFILL, "algorithm": {"max_staleness": 1, "num_epochs": 2, "mini_batches": 2}},
}


BEGUN: list[str] = []
"""Streams of the episodes that this process has begun."""


async def is_counted(stream: str, task: Task, sample_index: int) -> None:
    BEGUN.append(stream)


def trains(world: ProcessGroup, run: TinyRun) -> tuple[int, int]:
    """Steps done, and episodes begun in the first one. Only the first process has anything to write with."""

    async def go() -> tuple[int, int]:
        parts = run.parts()
        parts.trainer.world = world
        parts = replace(
            parts,
            world=world,
            metrics=only_first(world, lambda: parts.metrics),
            trackers=only_first(world, lambda: parts.trackers),
            screen=only_first(world, lambda: parts.screen),
        )
        progress = Progress()
        run.run_dir.mkdir(parents=True, exist_ok=True)
        with RunContext(world, "start again", grace_s=60, at_once=lambda: None) as ctx:
            await parts.engine.load_weights(0)
            await train(parts, progress, ctx)
        return progress.step, BEGUN.count("train/0")

    return asyncio.run(go())


def differences(run_dir: Path, other: Path) -> list[str]:
    """Tags and weights that differ by more than the order of summation brings about. (Of a prompt that two processes
    share each forwards a copy. Single weights, of a tensor one or one in a thousand, may differ by more: Adam makes a
    step of what is only a gradient's rounding.)"""
    found = []
    for row, expected in zip(rows(run_dir), rows(other), strict=True):
        assert row.keys() == expected.keys()
        found += [
            f"{tag} of step {row['step']}"
            for tag in row.keys() - {"tokens/forwarded"}
            if not math.isclose(row[tag], expected[tag], rel_tol=1e-4, abs_tol=1e-5)
        ]
    assert saved_steps(run_dir) == saved_steps(other)
    for step in saved_steps(other):
        name = f"checkpoints/step-{step:06d}/model.safetensors"
        weights, expected_weights = load_file(run_dir / name), load_file(other / name)
        found += [
            f"{key} after {step} steps"
            for key, x in expected_weights.items()
            if int(((weights[key] - x).abs() > 1e-5).sum()) > max(1, x.numel() // 1000)
        ]
    return found


def mostly_alike(episode: Any) -> float:
    """Coarse, so that groups teach nothing now and then."""
    return float(episode.branches[0].segments[1].token_ids[0] % 4 == 0)


@pytest.mark.parametrize(
    "name", [name if name == "ahead" else pytest.param(name, marks=pytest.mark.slow) for name in RUNS]
)
async def test_two_processes_take_the_steps_of_one(tmp_path: Path, name: str) -> None:
    alone = TinyRun(tmp_path / "one", grade=mostly_alike, **RUNS[name])
    await alone.go()
    (steps, begun), others = on(2, trains, replace(alone, run_dir=tmp_path / "two", before=is_counted))
    assert (steps, others[0], begun + others[1]) == (4, 4, rows(tmp_path / "one")[0]["episodes/total"])
    assert min(begun, others[1]) > 0
    assert differences(tmp_path / "two", tmp_path / "one") == []
    assert any(row.get("groups/refilled") for row in rows(tmp_path / "one")) == ("rollout" in RUNS[name])


def second_one() -> bool:
    return os.environ.get("RANK") == "1"


async def never_ends(stream: str, task: Task, sample_index: int) -> None:
    if second_one() and stream == "train/1":
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param({}, id="in turn"), pytest.param({"max_staleness": 1}, id="ahead")],
)
@pytest.mark.slow
def test_a_step_that_takes_one_too_long_is_skipped_by_both(tmp_path: Path, algorithm: Mapping[str, Any]) -> None:
    run = TinyRun(tmp_path, algorithm, before=never_ends, run={"step_timeout_s": 2.0})
    assert on(2, trains, run) == [(4, 0), (4, 0)]
    assert [row.get("skipped", 0.0) for row in rows(tmp_path)] == [0.0, 1.0, 0.0, 0.0]


async def gets_a_signal(stream: str, task: Task, sample_index: int) -> None:
    if second_one() and stream == "train/2":
        if task.id and not os.environ.get("SENT"):
            os.environ["SENT"] = "yes"
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param({}, id="in turn", marks=pytest.mark.slow), pytest.param({"max_staleness": 1}, id="ahead")],
)
async def test_a_signal_to_one_stops_both_and_one_goes_on(tmp_path: Path, algorithm: Mapping[str, Any]) -> None:
    whole = TinyRun(tmp_path / "whole", algorithm)
    await whole.go()
    stopped = replace(whole, run_dir=tmp_path / "stopped", before=gets_a_signal)
    for error in on(2, trains, stopped):
        assert (type(error), str(error)) == (Preempted, "stopped by SIGTERM; start again")
    assert saved_steps(stopped.run_dir)[-1] == 2
    await replace(stopped, before=at_once).go()
    assert differences(stopped.run_dir, whole.run_dir) == []


class Bug(Exception):
    pass


async def has_a_bug(stream: str, task: Task, sample_index: int) -> None:
    if second_one() and stream == "train/1":
        raise Bug("of the second process")


def test_a_bug_of_one_ends_both_at_their_last_step(tmp_path: Path) -> None:
    for error in on(2, trains, TinyRun(tmp_path, before=has_a_bug)):
        assert (type(error), str(error)) == (Bug, "of the second process")
    assert saved_steps(tmp_path) == [0, 1]
