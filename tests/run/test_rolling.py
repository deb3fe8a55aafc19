"""Dynamic sampling: other tasks in the place of those that taught nothing, and a bound on how often."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from agentgrpo.core.errors import RetrieverError, TooManyFailures
from agentgrpo.core.types import Episode, Task
from agentgrpo.records.trajectories import read_trajectories
from agentgrpo.rollout.scoring import keep_trainable
from agentgrpo.run.train import roll_out
from tests.run.tiny_run import TinyRun, rows

EASY = {"t0", "t3", "t4", "t5", "t8", "t9", "t10"}
"""Tasks that every episode gets right; of the other five each group teaches something."""


def grade(episode: Episode) -> float:
    return 1.0 if episode.task.id in EASY else float(episode.sample_index == 0)


def run(tmp_path: Path, rounds: int, **settings: object) -> TinyRun:
    return TinyRun(tmp_path, rollout={"refill_rounds": rounds, **settings}, run={"max_steps": 2}, grade=grade)


async def test_tasks_that_teach_nothing_are_replaced(tmp_path: Path) -> None:
    parts = run(tmp_path, 9).parts()
    for step in range(4):
        rolled = await roll_out(parts, step)
        kept, reasons = keep_trainable(rolled.scored)
        ids = [g.group.task.id for g in rolled.scored]
        assert len(kept) == 3
        assert len(set(ids)) == len(ids)  # no task twice
        assert ids[:3] == [t.id for t in parts.order.take(step)]
        assert [i in EASY for i in ids] == [reason is not None for reason in reasons]
        assert rolled.tags["groups/refilled"] == len(ids) - 3
        # a round has as many tasks as the one before left open
        rounds, open_, at = 0, 3, 0
        while open_:
            rounds, at, open_ = rounds + 1, at + open_, sum(i in EASY for i in ids[at : at + open_])
        assert (rolled.tags["rollout/rounds"], at) == (rounds, len(ids))


async def test_a_round_more_at_most(tmp_path: Path) -> None:
    parts = run(tmp_path, 1).parts()
    found = [await roll_out(parts, step) for step in range(4)]
    easy = [sum(t.id in EASY for t in parts.order.take(step)) for step in range(4)]
    assert max(easy) > 0
    assert [r.tags for r in found] == [{"rollout/rounds": 1.0 + (n > 0), "groups/refilled": float(n)} for n in easy]
    assert [len(r.scored) for r in found] == [3 + n for n in easy]


async def test_without_rounds_nothing_is_replaced_or_counted(tmp_path: Path) -> None:
    parts = run(tmp_path, 0).parts()
    rolled = await roll_out(parts, 0)
    assert [g.group.task.id for g in rolled.scored] == [t.id for t in parts.order.take(0)]
    assert rolled.tags == {}


async def test_a_step_ends_where_no_task_is_left(tmp_path: Path) -> None:
    parts = replace(run(tmp_path, 99), grade=lambda e: 1.0).parts()
    rolled = await roll_out(parts, 0)
    assert Counter(g.group.task.id for g in rolled.scored) == Counter(f"t{i}" for i in range(12))
    assert rolled.tags == {"rollout/rounds": 4.0, "groups/refilled": 9.0}


async def test_every_round_is_recorded_and_only_what_teaches_is_trained_on(tmp_path: Path) -> None:
    await run(tmp_path, 9).go()
    for step, row in enumerate(rows(tmp_path)):
        records = list(read_trajectories(tmp_path / "trajectories" / f"train-{step:06d}.jsonl"))
        dropped = {r.task: r.dropped for r in records}
        assert len(dropped) == row["groups/total"] == 3 + row["groups/refilled"]
        assert {task: None if task not in EASY else "degenerate" for task in dropped} == dropped
        trained = sum(r.response_len for r in records if r.dropped is None)
        assert row["tokens/trained"] == trained


async def test_failed_groups_are_replaced_too_but_count_as_failures(tmp_path: Path) -> None:
    async def down(stream: str, task: Task, sample_index: int) -> None:
        if task.id in EASY and sample_index == 0:
            raise RetrieverError("down", kind="http_500")

    failing = replace(run(tmp_path, 9), before=down, run={"max_steps": 1, "max_error_fraction": 0.4})
    rolled = await roll_out(failing.parts(), 0)
    assert len(keep_trainable(rolled.scored)[0]) == 3
    await failing.go()
    assert rows(tmp_path)[0]["failures/http_500"] == sum(g.group.task.id in EASY for g in rolled.scored) > 0
    with pytest.raises(TooManyFailures, match="failed for infrastructure reasons"):
        await replace(failing, run_dir=tmp_path / "strict", run={"max_error_fraction": 0.0}).go()
