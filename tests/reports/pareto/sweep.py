"""Evaluated runs made by hand, for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgrpo.core.types import Task
from agentgrpo.environments.search.metrics import SEARCH_FIGURES
from tests import builders
from tests.run_folders import folder, record, searched

TASKS = [builders.task(f"Who is {i}?", id=f"t{i}", kind="ab"[i % 2]) for i in range(4)]
Scores = Sequence[tuple[float | None, int]]
"""Of each task: correctness and web searches."""


def priced(price: float, **more: Any) -> dict[str, Any]:
    return {"reward": {"terms": {"retriever_cost": {"web": 0.0 - price}}}, **more}


def scored(scores: Scores, tasks: Sequence[Task] = TASKS) -> list[Any]:
    return [searched(task, right, web=web) for task, (right, web) in zip(tasks, scores, strict=False)]


def evaluated(
    path: Path,
    config: Mapping[str, Any],
    end: Scores,
    *,
    start: Scores = ((0.0, 2),) * 4,
    seed: int = 0,
    oracle: Mapping[str, float] | None = None,
    trains: bool = True,
    ckpt: Path | None = None,
    tasks: Sequence[Task] = TASKS,
    baselines: Mapping[str, Scores] | None = None,
    **more: Any,
) -> Path:
    """A run, or with trains=False what `agentgrpo eval --ckpt` makes."""
    said: dict[str, Any] = {"figures": SEARCH_FIGURES.to_json(), "greedy": {}, "sampled": {}}
    said |= {"oracle": dict(oracle)} if oracle else {}
    said |= {"baselines": {name: {} for name in baselines}} if baselines else {}
    made = folder(
        path,
        {**config, "run": {"seed": seed}},
        metrics=[{"step": 0, "reward/mean": 0.0}] if trains else (),
        state={"start": {"sha256": "abc"}} if trains else None,
        evaluation=said,
        evaluated={"ckpt": str(ckpt), "baseline": None} if ckpt else None,
        **more,
    )
    for mode in ("greedy", "sampled"):
        record(made, f"eval-end-{mode}", scored(end, tasks))
        record(made, f"eval-start-{mode}", scored(start, tasks))
    for name, scores in (baselines or {}).items():
        record(made, f"eval-{name}-greedy", scored(scores, tasks))
    return made
