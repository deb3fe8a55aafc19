"""An evaluation recomputed from its trajectories: every figure of eval.json, by task. It loads no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from statistics import fmean
from typing import Any

from agentgrpo.core.messages import Status
from agentgrpo.core.types import Episode, Exit, RewardResult, Task
from agentgrpo.environments.figures import Figures
from agentgrpo.records.run_dir import RunDir
from agentgrpo.records.trajectories import TrajectoryRecord, read_trajectories

MODES = ("greedy", "sampled")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvaluation:
    """One policy over a list of tasks in one mode, without tasks that have a failed episode."""

    task_ids: tuple[str, ...]
    kinds: tuple[str, ...]
    contents: tuple[str, ...]
    """A digest of each task's content, because two task sets may use the same id for different tasks."""
    columns: Mapping[str, tuple[float, ...]]
    """Figure -> its value for each task, the mean over the task's samples. "cost" is missing if calls were not counted,
    as in runs of older versions."""
    quality: str
    headline: tuple[str, ...]
    """Names of the main figures, the quality first."""
    asked: tuple[tuple[str, str], ...]
    """(id, content digest) of every task, failed ones included."""

    @property
    def num_failed(self) -> int:
        return len(self.asked) - len(self.task_ids)

    def means(self) -> dict[str, float]:
        return {name: fmean(values) for name, values in self.columns.items()} if self.task_ids else {}

    def only(self, task_ids: Sequence[str]) -> RecordedEvaluation:
        """Restrict the evaluation to these tasks, in this order."""
        row = {task_id: i for i, task_id in enumerate(self.task_ids)}
        rows = [row[task_id] for task_id in task_ids]
        return replace(
            self,
            task_ids=tuple(task_ids),
            kinds=tuple(self.kinds[i] for i in rows),
            contents=tuple(self.contents[i] for i in rows),
            columns={name: tuple(values[i] for i in rows) for name, values in self.columns.items()},
            asked=tuple((self.task_ids[i], self.contents[i]) for i in rows),
        )


def read_recorded(run: RunDir, policy: str, mode: str) -> RecordedEvaluation | None:
    """Read an evaluation of `policy`: start, end, or a baseline's name. None if the run has no such evaluation. Raises
    DataError for trajectories that cannot be read."""
    files = run.trajectory_files()
    file = next((f for f in files if (f.step, f.policy, f.mode) == (None, policy, mode)), None)
    if file is None:
        return None
    groups: dict[str, list[TrajectoryRecord]] = {}
    for record in read_trajectories(file.path):
        groups.setdefault(record.task, []).append(record)
    kept = {task: rows for task, rows in groups.items() if all(r.status != Status.FAILED for r in rows)}
    figures = figures_of(run)
    paid = figures.priced(prices_of(run, figures))
    columns: dict[str, list[float]] = {}
    unknown = {*figures.counts.values()} - {key for rows in kept.values() for row in rows for key in row.metrics}
    for rows in kept.values():
        found = [figures.row(*_graded(row), paid) for row in rows]
        for name in found[0]:
            columns.setdefault(name, []).append(fmean(row[name] for row in found))
    return RecordedEvaluation(
        task_ids=tuple(kept),
        kinds=tuple(str(rows[0].metadata.get("kind", "")) for rows in kept.values()),
        contents=tuple(_content(rows[0]) for rows in kept.values()),
        columns={name: tuple(values) for name, values in columns.items() if name != "cost" or not unknown},
        quality=figures.quality,
        headline=figures.headline,
        asked=tuple((task, _content(rows[0])) for task, rows in groups.items()),
    )


def in_common(a: RecordedEvaluation, b: RecordedEvaluation) -> tuple[list[str], int]:
    """(ids of the common tasks in the order of `a`, number of other tasks with the same id but another content)."""
    content = dict(zip(b.task_ids, b.contents, strict=True))
    shared = [(i, c) for i, c in zip(a.task_ids, a.contents, strict=True) if i in content]
    same = [task_id for task_id, mine in shared if content[task_id] == mine]
    return same, len(shared) - len(same)


def figures_of(run: RunDir) -> Figures:
    """The figures by which runs in this environment are compared, as the run recorded them; for an older version from
    eval.json, or else correctness alone, without a cost."""
    said = (run.evaluation or {}).get("figures") or run.environment.get("figures")
    return Figures.from_json(said or {"headline": ["correctness"], "quality": "correctness"})


def prices_of(run: RunDir, figures: Figures) -> dict[str, float]:
    """Configured prices of the calls that the agent makes: run.eval.prices, or else a nonzero price of the budget.
    Prices known only to the run's environment are not included."""
    config = run.config
    given = _numbers(config.get("run", {}).get("eval", {}).get("prices"), figures)
    paid = _numbers(config.get("budget", {}).get("prices"), figures)
    return {name: price for name, price in paid.items() if price} | given


def _numbers(prices: object, figures: Figures) -> dict[str, float]:
    found = prices if isinstance(prices, Mapping) else {}
    return {k: float(v) for k, v in found.items() if k in figures.counts and isinstance(v, int | float)}


def _graded(record: TrajectoryRecord) -> tuple[Episode, RewardResult | None]:
    """The episode and its reward, with only the fields that figures read."""
    episode = Episode(
        task=Task(id=record.task, messages=(), references=()),
        sample_index=record.sample_index,
        branches=(),
        answer=record.answer,
        exit=Exit(record.agent["exit"]),
        metrics=record.metrics,
    )
    if record.reward is None:
        return episode, None
    return episode, RewardResult(
        total=record.reward, terms=record.reward_terms, dimensions={}, correctness=record.correctness or 0.0
    )


def _content(record: TrajectoryRecord) -> str:
    asked: list[Any] = [record.prompt_messages, record.references]
    return sha256(repr(asked).encode("utf-8", "surrogatepass")).hexdigest()[:16]
