"""Run directories made by hand: what `diff` and `report` read, without a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from agentgrpo.core.types import Episode, Failure, RewardResult, ScoredGroup, Task
from agentgrpo.records.run_dir import RunDir
from agentgrpo.records.trajectories import write_trajectories
from tests import builders

PRICES = {"web": 0.05, "vdb": 0.01, "rerank": 0.02}


def folder(
    path: Path,
    config: Mapping[str, Any] | None = None,
    *,
    metrics: Sequence[Mapping[str, Any]] = (),
    state: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    evaluated: Mapping[str, Any] | None = None,
) -> Path:
    """A run directory. state: of its checkpoint, which has no weights."""
    path.mkdir(parents=True, exist_ok=True)
    base: dict[str, Any] = {
        "environment": {"name": "search"},
        "run": {"dir": str(path), "seed": 0, "eval": {"prices": PRICES}},
    }
    (path / "config.yaml").write_text(yaml.safe_dump(_merged(base, config or {})))
    if metrics:
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    if state is not None:
        trainer = path / "checkpoints" / "step-000002" / "trainer"
        trainer.mkdir(parents=True)
        (trainer / "state.json").write_text(json.dumps({"state": state}))
    for name, content in (("environment", environment), ("eval", evaluation), ("evaluated", evaluated)):
        if content is not None:
            (path / f"{name}.json").write_text(json.dumps(content))
    return path


def run_dir(path: Path, config: Mapping[str, Any] | None = None, **more: Any) -> RunDir:
    return RunDir(folder(path, config, **more))


def _merged(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        k: _merged(a[k], v) if isinstance(v, Mapping) and isinstance(a.get(k), Mapping) else v for k, v in b.items()
    }
    return {**a, **both}


def searched(
    of: Task, correctness: float | None, *, web: int = 0, vdb: int = 0, rerank: int = 0, reward: float | None = None
) -> ScoredGroup:
    """One episode that sent so many searches. correctness: None = it failed."""
    counts = {
        "search_rounds": web + vdb, "web_searches": web, "vdb_searches": vdb,
        "web_calls": web, "vdb_calls": vdb, "rerank_calls": rerank,
    }  # fmt: skip
    episode = builders.episode(of, metrics={name: float(count) for name, count in counts.items()})
    return graded(episode, correctness, reward=reward)


def graded(
    episode: Episode,
    correctness: float | None,
    *,
    reward: float | None = None,
    terms: Mapping[str, float] | None = None,
) -> ScoredGroup:
    """A group of one episode. correctness: None = its judge failed."""
    if correctness is None:
        failure = Failure(kind="JudgeError", stage="judge", message="no answer")
        return ScoredGroup(group=builders.group(episode), rewards=(None,), failures=(failure,))
    total = correctness if reward is None else reward
    result = RewardResult(
        total=total, terms=terms or {"correctness": correctness}, dimensions={}, correctness=correctness
    )
    return ScoredGroup(group=builders.group(episode), rewards=(result,))


def record(run: Path, name: str, groups: Sequence[ScoredGroup], *, step: int = 0, seed: int = 0) -> Path:
    """RUN/trajectories/NAME.jsonl."""
    path = run / "trajectories" / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    nothing = [[None] * len(group.rewards) for group in groups]
    write_trajectories(path, scored=groups, advantages=nothing, dropped=[None] * len(groups), step=step, seed=seed)
    return path
