"""Evaluation on held-out tasks: one policy to a scorecard, two scorecards to a comparison (SPEC 1.8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from agentgrpo.agents.base import Agent
from agentgrpo.engines.base import SamplingParams
from agentgrpo.errors import DataError
from agentgrpo.judges.base import AnswerJudge
from agentgrpo.recipes.bootstrap import paired_difference, pass_at_k, verdict
from agentgrpo.rewards.reward import Reward
from agentgrpo.rollout import cost_of, episode_failures, refuse_failures, run_groups, score_groups
from agentgrpo.types import Episode, RewardResult, ScoredGroup, Task

METRICS = ("correctness", "search_rounds", "web_searches", "vdb_searches", "rerank_calls", "cost")
"""The metrics of eval.json that scripts rely on; reward, web_fraction, rerank_rate and evidence_score_final follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorecard:
    """One policy over a list of tasks: every metric's value per task (mean over its samples), paired by position."""

    task_ids: tuple[str, ...]
    kinds: tuple[str, ...]
    metrics: Mapping[str, tuple[float, ...]]
    mismatched: tuple[float, ...]
    """What the judge gives the same answers against another task's references: its false-positive level."""
    pass_at_k: Mapping[str, float]
    failures: int

    def means(self) -> dict[str, float]:
        return {name: fmean(values) for name, values in self.metrics.items()}

    def means_of(self, kind: str) -> dict[str, float]:
        rows = [i for i, k in enumerate(self.kinds) if k == kind]
        return {name: fmean(values[i] for i in rows) for name, values in self.metrics.items()}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Scorecard:
        return cls(
            task_ids=tuple(row["task_ids"]),
            kinds=tuple(row["kinds"]),
            metrics={k: tuple(v) for k, v in row["metrics"].items()},
            mismatched=tuple(row["mismatched"]),
            pass_at_k=dict(row["pass_at_k"]),
            failures=int(row["failures"]),
        )


def _episode_row(episode: Episode, reward: RewardResult | None, prices: Mapping[str, float]) -> dict[str, float]:
    """A failed episode stays in the denominator with correctness 0: a user would have had no answer from it."""
    m = episode.metrics
    web, vdb, rerank = (m.get(k, 0.0) for k in ("web_searches", "vdb_searches", "rerank_calls"))
    queries = web + vdb
    return {
        "correctness": reward.correctness if reward else 0.0,
        "search_rounds": m.get("search_rounds", 0.0),
        "web_searches": web,
        "vdb_searches": vdb,
        "rerank_calls": rerank,
        "cost": cost_of(m, prices),
        "reward": reward.total if reward else 0.0,
        "web_fraction": web / queries if queries else 0.0,
        "rerank_rate": rerank / queries if queries else 0.0,
        "evidence_score_final": m.get("evidence_score_final", 0.0),
    }


async def _mismatched(judge: AnswerJudge, groups: Sequence[ScoredGroup]) -> tuple[float, ...]:
    """The answer of task i graded against the references of the task half a list away."""
    grades = []
    for i, group in enumerate(groups):
        answer = group.group.episodes[0].answer
        other = groups[(i + max(1, len(groups) // 2)) % len(groups)].group.task
        grades.append((await judge.grade(other, [answer]))[0].score if answer else 0.0)
    return tuple(grades)


async def evaluate(
    *,
    agent: Agent,
    judge: AnswerJudge,
    reward: Reward,
    tasks: Sequence[Task],
    sampling: SamplingParams,
    stream: str,
    samples_per_task: int,
    prices: Mapping[str, float],
    max_concurrent_episodes: int,
    max_error_fraction: float,
) -> tuple[Scorecard, list[ScoredGroup]]:
    """Every task `samples_per_task` times. `stream` seeds the sampling, so equal streams pair up."""
    if len(tasks) < 2:
        raise DataError(f"an evaluation over {len(tasks)} tasks says nothing; give a split of at least 2 (better 400)")
    groups = await run_groups(
        agent,
        tasks,
        group_size=samples_per_task,
        stream=stream,
        sampling=sampling,
        max_concurrent_episodes=max_concurrent_episodes,
    )
    scored = await score_groups(reward, groups)
    refuse_failures(scored, max_error_fraction=max_error_fraction)
    columns: dict[str, list[float]] = {}
    for group in scored:
        rows = [_episode_row(e, r, prices) for e, r in zip(group.group.episodes, group.rewards, strict=True)]
        for name in rows[0]:
            columns.setdefault(name, []).append(fmean(row[name] for row in rows))
    card = Scorecard(
        task_ids=tuple(t.id for t in tasks),
        kinds=tuple(str(t.metadata.get("kind", "")) for t in tasks),
        metrics={name: tuple(values) for name, values in columns.items()},
        mismatched=await _mismatched(judge, scored),
        pass_at_k=_pass_at_k(scored, samples_per_task),
        failures=len(episode_failures(scored)),
    )
    return card, scored


def _pass_at_k(scored: Sequence[ScoredGroup], samples: int) -> dict[str, float]:
    """pass@k for k = 1, 2, 4 … ≤ samples and avg@samples; right = the judge's full mark."""
    right = [sum(r is not None and r.correctness >= 1.0 for r in group.rewards) for group in scored]
    found = {}
    k = 1
    while k <= samples:
        found[f"pass@{k}"] = fmean(pass_at_k(n, samples, k) for n in right)
        k *= 2
    found[f"avg@{samples}"] = fmean(n / samples for n in right)
    return found


def compare(baseline: Scorecard, trained: Scorecard) -> dict[str, list[float]]:
    """{metric: [mean, low, high]} of trained − baseline, paired by task. Raises DataError for different tasks."""
    if baseline.task_ids != trained.task_ids:
        raise DataError(
            "baseline and trained were evaluated on different tasks; evaluate both on the same split and count"
        )
    return {
        name: list(paired_difference(baseline.metrics[name], trained.metrics[name]))
        for name in trained.metrics
        if name in baseline.metrics
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Both policies, greedy and sampled, and what follows from it; `to_json` is eval.json."""

    baseline: Mapping[str, Scorecard]
    trained: Mapping[str, Scorecard]
    oracle: Scorecard | None
    margin: float
    min_discrimination: float

    def to_json(self) -> dict[str, Any]:
        modes: dict[str, Any] = {}
        for mode, trained in self.trained.items():
            baseline = self.baseline[mode]
            modes[mode] = {
                "baseline": baseline.means(),
                "trained": trained.means(),
                "difference": compare(baseline, trained),
                "discrimination": list(paired_difference(trained.mismatched, trained.metrics["correctness"])),
                "pass_at_k": {"baseline": baseline.pass_at_k, "trained": trained.pass_at_k},
                "failures": {"baseline": baseline.failures, "trained": trained.failures},
                "kinds": {
                    k: {"baseline": baseline.means_of(k), "trained": trained.means_of(k)}
                    for k in sorted(set(trained.kinds))
                    if k
                },
            }
        greedy = modes["greedy"]
        decision, reason = verdict(
            greedy["difference"],
            greedy["discrimination"],
            margin=self.margin,
            min_discrimination=self.min_discrimination,
        )
        return {
            "verdict": decision.value,
            "reason": reason,
            "n": len(self.trained["greedy"].task_ids),
            **modes,
            **({"oracle": self.oracle.means()} if self.oracle else {}),
        }
