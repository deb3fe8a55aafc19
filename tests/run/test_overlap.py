"""One step off-policy: the rollout of the next step beside the update of this one, and not a bit that depends on it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentgrpo.core.errors import GuardRollback, Preempted, TrainingError
from agentgrpo.core.types import Task
from agentgrpo.run.context import RunContext
from agentgrpo.run.guards import Guard
from agentgrpo.run.rollouts import Rollouts
from agentgrpo.run.train import roll_out
from agentgrpo.training.process_group import Alone
from tests.run.tiny_run import Before, TinyRun, recorded, rolled_out, rows, saved_steps, versions
from tests.thorough import siblings

OVERLAPPING = {"max_staleness": 1}
PATIENCE_S = 30.0
"""Only a test that fails waits so long."""


def is_update(tags: Mapping[str, float]) -> bool:
    """Whether guards were called from inside an update."""
    return "gradients/norm" in tags


def compared(a: Path, b: Path) -> list[str]:
    """Names of the files that differ."""
    left, right = recorded(a), recorded(b)
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))


async def resumed_otherwise(run: TinyRun, steps: Iterable[int]) -> dict[int, list[str]]:
    """Step -> names of the files that differ where the finished `run` was killed after that step and resumed."""
    found = {}
    for step in steps:
        again = run.back_to(step, run.run_dir.with_name(f"from-{step}"))
        await again.go()
        found[step] = compared(run.run_dir, again.run_dir)
    return {step: names for step, names in found.items() if names}


def stop_during(rollout: str) -> Before:
    """One SIGTERM in the rollout, whose episodes then never end."""
    sent: list[int] = []

    async def before(stream: str, task: Task, sample_index: int) -> None:
        if stream == rollout:
            if not sent:
                sent.append(os.getpid())
                os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

    return before


async def test_update_and_next_rollout_go_on_at_once(tmp_path: Path) -> None:
    """Update 0 ends only once rollout 1 has begun, and rollout 1 samples only once update 0 has begun."""
    rolling, updating = threading.Event(), threading.Event()
    met: list[str] = []

    async def before(stream: str, task: Task, sample_index: int) -> None:
        if stream == "train/1":
            rolling.set()
            if await asyncio.to_thread(updating.wait, PATIENCE_S):
                met.append("rollout")

    def look(step: int, tags: Mapping[str, float]) -> None:
        if step == 0 and is_update(tags):
            updating.set()
            if rolling.wait(PATIENCE_S):
                met.append("update")

    await TinyRun(tmp_path, OVERLAPPING, before=before, look=look).go()
    assert sorted(met) == ["rollout"] * 9 + ["update"]


async def test_without_staleness_one_follows_the_other(tmp_path: Path) -> None:
    log: list[str] = []

    async def before(stream: str, task: Task, sample_index: int) -> None:
        log.append(stream)

    def look(step: int, tags: Mapping[str, float]) -> None:
        if is_update(tags):
            log.append(f"update/{step}/{threading.current_thread() is threading.main_thread()}")

    await TinyRun(tmp_path, before=before, look=look).go()
    assert log == [line for step in range(4) for line in [f"train/{step}"] * 9 + [f"update/{step}/True"]]


def openmp_threads() -> tuple[bool, int]:
    """(whether this is the main thread, its number of OpenMP threads). torch.get_num_threads would set the latter."""
    loaded = [line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "omp" in line]
    ours = [path for path in loaded if "/torch" in path]  # faiss brings one of its own
    library = ctypes.CDLL(next(path for path in ours or loaded if "libgomp" in path or "libiomp" in path))
    return threading.current_thread() is threading.main_thread(), library.omp_get_max_threads()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks up the OpenMP library as Linux shows it")
async def test_updates_compute_in_a_thread_with_as_many_compute_threads(tmp_path: Path) -> None:
    """Else the bits of a product might be others than on the main thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        with RunContext(Alone(), "start again", grace_s=60, at_once=lambda: None) as ctx:
            parts = [TinyRun(tmp_path, algorithm).parts() for algorithm in (OVERLAPPING, {})]
            early, in_turn = (Rollouts(p, ctx, partial(roll_out, p)) for p in parts)
            found = [await rollouts.beside(openmp_threads) for rollouts in (early, in_turn)]
            await early.close()
    finally:
        torch.set_num_threads(before)
    assert found == [(False, before + 1), (True, before + 1)]


async def test_episodes_are_one_update_behind(tmp_path: Path) -> None:
    await TinyRun(tmp_path / "ahead", OVERLAPPING).go()
    assert [versions(tmp_path / "ahead", step) for step in range(4)] == [{0}, {0}, {1}, {2}]
    assert [row["policy/staleness_max"] for row in rows(tmp_path / "ahead")] == [0.0, 1.0, 1.0, 1.0]
    await TinyRun(tmp_path / "sync").go()
    assert [versions(tmp_path / "sync", step) for step in range(4)] == [{0}, {1}, {2}, {3}]


async def test_step_1_samples_from_the_start_weights(tmp_path: Path) -> None:
    """What step 1 rolls out is the same whatever update 0 does."""
    one, other = (
        TinyRun(tmp_path / "a", OVERLAPPING),
        TinyRun(tmp_path / "b", OVERLAPPING, grade=lambda e: e.sample_index / 2),
    )
    await one.go()
    await other.go()
    differing = compared(tmp_path / "a", tmp_path / "b")
    assert "checkpoints/step-000001/model.safetensors" in differing

    def tokens(run: TinyRun, step: int) -> list[object]:
        parts = [run.run_dir / "trajectories" / f"train-{step:06d}.jsonl"]
        return [line.partition('"tokens":')[2].partition("}")[0] for p in parts for line in p.read_text().splitlines()]

    assert tokens(one, 1) == tokens(other, 1)
    assert tokens(one, 2) != tokens(other, 2)


ALL = TinyRun(
    Path(),
    {"max_staleness": 1, "replay_groups": 4, "mask_truncated": True},
    {"refill_rounds": 2, "curriculum": "difficulty", "stratify_by": "kind"},
    {"max_steps": 5},
    grade=lambda e: float(sum(e.branches[0].segments[1].token_ids) % 3 == 0),
)
"""Everything that a step hands to the next one."""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(TinyRun(Path()), marks=pytest.mark.slow),
        pytest.param(TinyRun(Path(), OVERLAPPING), marks=pytest.mark.slow),
        pytest.param(replace(ALL, algorithm={"replay_groups": 4}), marks=pytest.mark.slow),
        ALL,
    ],
    ids=["sync", "ahead", "sync, all", "ahead, all"],
)
async def test_a_run_resumed_at_any_step_is_the_run_that_was_not(kind: TinyRun, tmp_path: Path) -> None:
    whole = replace(kind, run_dir=tmp_path / "whole")
    steps = (await whole.go()).step
    assert saved_steps(whole.run_dir) == list(range(steps + 1))
    assert await resumed_otherwise(whole, range(steps + 1)) == {}


@pytest.mark.slow
async def test_a_run_without_overlap_in_between_resumes_twice(tmp_path: Path) -> None:
    """A resumption that is itself stopped before its first new step, and resumed again."""
    whole = replace(ALL, run_dir=tmp_path / "whole")
    await whole.go()

    again = whole.back_to(3, tmp_path / "again")
    with pytest.raises(Preempted):
        await replace(again, before=stop_during("train/3")).go()
    assert saved_steps(again.run_dir) == [0, 1, 2, 3]
    await again.go()
    assert compared(whole.run_dir, again.run_dir) == []


async def test_a_checkpoint_holds_the_weights_of_both_versions(tmp_path: Path) -> None:
    await TinyRun(tmp_path, OVERLAPPING).go()

    def weights(step: int) -> dict[str, torch.Tensor]:
        return load_file(tmp_path / "checkpoints" / f"step-{step:06d}" / "model.safetensors")

    for step in (1, 2, 3):
        tensors = load_file(tmp_path / "checkpoints" / f"step-{step:06d}" / "trainer" / "optimizer.safetensors")
        sampler = {n.removeprefix("sampler/"): t for n, t in tensors.items() if n.startswith("sampler/")}
        assert sampler.keys() == weights(step).keys()
        assert all(torch.equal(sampler[n], t) for n, t in weights(step - 1).items())
    for step in (0, 4):  # nothing was begun ahead
        tensors = load_file(tmp_path / "checkpoints" / f"step-{step:06d}" / "trainer" / "optimizer.safetensors")
        assert not [n for n in tensors if n.startswith("sampler/")]


@pytest.mark.parametrize(("during", "left"), siblings([("train/1", 1), ("train/0", 0), ("train/3", 3)], quick=1))
async def test_a_stop_during_a_rollout_ahead_leaves_the_step_before_it_whole(
    tmp_path: Path, during: str, left: int
) -> None:
    whole = replace(ALL, run_dir=tmp_path / "whole")
    await whole.go()

    run = replace(whole, run_dir=tmp_path / "run", run={"max_steps": 5, "checkpoint_every": 99})
    with pytest.raises(Preempted):
        await replace(run, before=stop_during(during)).go()
    assert saved_steps(run.run_dir)[-1] == left
    await run.go()
    names = [n for n in compared(whole.run_dir, run.run_dir) if not n.startswith("checkpoints")]
    assert names == []
    last = "checkpoints/step-000005/model.safetensors"
    assert recorded(whole.run_dir)[last] == recorded(run.run_dir)[last]


async def test_how_a_rollout_ended_is_looked_at_when_its_step_is_due(tmp_path: Path) -> None:
    async def fail(stream: str, task: Task, sample_index: int) -> None:
        if stream == "train/2":
            raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        await TinyRun(tmp_path, OVERLAPPING, run={"checkpoint_every": 99}, before=fail).go()
    assert [row["step"] for row in rows(tmp_path)] == [0, 1]
    assert saved_steps(tmp_path)[-1] == 2


@pytest.mark.slow
async def test_a_rollout_past_its_time_skips_its_own_step(tmp_path: Path) -> None:
    """Nothing was begun ahead of the step after it, whose rollout then has the weights of its own time."""

    async def hang(stream: str, task: Task, sample_index: int) -> None:
        if stream == "train/1":
            await asyncio.Event().wait()

    run = TinyRun(tmp_path / "run", OVERLAPPING, run={"step_timeout_s": 4.0}, before=hang)
    await run.go()
    assert [row.get("skipped") for row in rows(run.run_dir)] == [None, 1.0, None, None]
    assert [versions(run.run_dir, step) for step in (0, 2, 3)] == [{0}, {2}, {2}]
    assert await resumed_otherwise(run, (2, 3)) == {}


@pytest.mark.slow
async def test_a_refused_update_leaves_the_next_rollout_as_it_is(tmp_path: Path) -> None:
    def refuse(step: int, tags: Mapping[str, float]) -> None:
        if step == 1 and is_update(tags):
            raise TrainingError("no")

    run = TinyRun(tmp_path / "run", OVERLAPPING, look=refuse)
    await run.go()
    assert [row.get("skipped") for row in rows(run.run_dir)] == [None, 1.0, None, None]
    assert [versions(run.run_dir, step) for step in range(4)] == [{0}, {0}, {1}, {2}]
    assert await resumed_otherwise(run, range(4)) == {}


@pytest.mark.slow
async def test_a_step_that_is_skipped_before_its_rollout_leaves_that_behind(tmp_path: Path) -> None:
    """As a guard on the dev evaluation skips it. The next step does not take what was rolled out for this one."""

    def refuse(step: int, tags: Mapping[str, float]) -> None:
        if step == 2 and not tags:
            raise TrainingError("no")

    run = TinyRun(tmp_path / "run", OVERLAPPING, run={"max_steps": 5}, look=refuse)
    await run.go()
    assert [row.get("skipped") for row in rows(run.run_dir)] == [None, None, 1.0, None, None]
    assert [versions(run.run_dir, step) for step in (0, 1, 3, 4)] == [{0}, {0}, {3}, {3}]
    assert rolled_out(run.run_dir, 3) == sorted(task.id for task in run.parts().order.take(3))
    assert await resumed_otherwise(run, (2, 3, 4)) == {}


@pytest.mark.slow
async def test_after_a_rollback_the_next_rollout_has_the_weights_that_came_back(tmp_path: Path) -> None:
    def roll_back(step: int, tags: Mapping[str, float]) -> None:
        if step == 2 and is_update(tags):
            raise GuardRollback("no good")

    may = {"never": Guard(metric="reward/mean", when="below", limit=-1.0, action="rollback")}
    run = TinyRun(tmp_path / "run", OVERLAPPING, run={"max_steps": 5}, guards=may, look=roll_back)
    await run.go()
    assert [row.get("guard/rollback") for row in rows(run.run_dir)] == [None, None, 1.0, None, None]
    assert [versions(run.run_dir, step) for step in range(5)] == [{0}, {0}, {1}, {3}, {3}]
    assert await resumed_otherwise(run, (1, 3, 4)) == {}
