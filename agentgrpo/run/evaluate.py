"""Evaluation on held-out tasks: a scorecard for each policy, and a comparison of two scorecards."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import chain
from statistics import fmean
from typing import Any

import numpy as np

from agentgrpo.config.settings import Criterion, RolloutSettings
from agentgrpo.core import heap
from agentgrpo.core.errors import DataError, EpisodeError
from agentgrpo.core.types import ScoredGroup, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.factory import Runner
from agentgrpo.environments.figures import Figures
from agentgrpo.judges.base import AnswerJudge
from agentgrpo.judges.evidence.measure import JudgedEvidence, evidence_figures, judged_evidence
from agentgrpo.rewards.base import GroupReward
from agentgrpo.rollout.groups import run_groups
from agentgrpo.rollout.scoring import new_failures, refuse_failures, score_groups
from agentgrpo.training.process_group import Alone, ProcessGroup, share

_LOG = logging.getLogger(__name__)

# --- Paired comparison of two policies on the same tasks: differences with bootstrap intervals, and the verdict.


class Verdict(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"

    @property
    def exit_code(self) -> int:
        """The exit code of `agentgrpo eval --gate`."""
        return {"PASS": 0, "FAIL": 9, "INCONCLUSIVE": 10}[self.value]


def paired_difference(
    baseline: Sequence[float],
    trained: Sequence[float],
    *,
    resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
    strata: Sequence[str] | None = None,
) -> tuple[float, float, float]:
    """Return (mean, low, high) of trained − baseline over tasks. The interval is the percentile interval of a bootstrap
    over tasks (Efron & Tibshirani 1993, ch. 13) and holds `level` of the draws. Rows pair up by position. strata: the
    stratum of each task; the mean is then over the strata's means, and each is resampled by itself. Raises ValueError
    for unequal or no rows."""
    if len(baseline) != len(trained) or not baseline:
        raise ValueError(
            f"a paired difference needs equally many tasks on both sides, got {len(baseline)} and {len(trained)}"
        )
    whole = np.asarray(trained, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    parts = [whole[np.asarray([s == name for s in strata])] for name in sorted(set(strata))] if strata else [whole]
    rng, tail = np.random.default_rng(seed), 50 * (1 - level)
    drawn = [part[rng.integers(0, len(part), size=(resamples, len(part)))].mean(axis=1) for part in parts]
    low, high = np.percentile(np.mean(drawn, axis=0), [tail, 100 - tail])
    return float(np.mean([part.mean() for part in parts])), float(low), float(high)


SIGNIFICANT = 0.05


def sign_test(baseline: Sequence[float], trained: Sequence[float]) -> float:
    """Return the two-sided p-value of the exact sign test (for right and wrong: McNemar's): the probability that the
    tasks that changed split at least as unevenly between higher and lower if either were equally likely; 1 if no task
    changed."""
    pairs = list(zip(baseline, trained, strict=True))
    higher, lower = (sum(sign * (after - before) > 0 for before, after in pairs) for sign in (1, -1))
    tail = sum(math.comb(higher + lower, k) for k in range(min(higher, lower) + 1))
    p: float = 2 * tail / 2 ** (higher + lower)
    return min(1.0, p)


def verdict(
    difference: Mapping[str, Sequence[float]],
    discrimination: Sequence[float] | None,
    *,
    quality: str,
    spending: str,
    criterion: Criterion,
    margin: float,
    min_discrimination: float,
    fell: Sequence[str] = (),
    chance: float = 0.0,
) -> tuple[Verdict, str]:
    """PASS iff the trained policy is better by `criterion`, beyond noise, and quality means something.

        quality   `quality` is higher
        thrift    `spending` is lower and `quality` is not lower
        cost      like thrift, for the cost of calls
        pareto    `quality` is higher or `spending` lower, and the other is not worse

    FAIL iff a watched metric is worse beyond noise: quality for every criterion, and spending (or cost) for all but
    `quality`. `difference` maps a metric to (mean, low, high) of trained − baseline; not lower = low is at least
    -margin. `discrimination` is (mean, low, high) of the trained policy's quality minus the grade that the same judge
    gives its answers against *other* tasks' references: with a judge that likes everything, or a policy that is never
    right, no saving can pass. It is None if no judge graded the quality. `fell`: kinds of task whose quality fell
    beyond noise; if there are any, nothing passes. `chance`: `sign_test` of quality; quality is higher only below .05,
    since a bootstrap interval is too narrow if few tasks changed.
    """
    watched = "cost" if criterion == "cost" else spending
    _, spent_low, spent_high = (0.0, 0.0, 0.0) if criterion == "quality" else difference[watched]
    _, right_low, right_high = difference[quality]
    right, spent = quality.replace("_", " "), watched.replace("_", " ")
    if right_high < 0 or spent_low > 0:
        return Verdict.FAIL, f"{right} fell" if right_high < 0 else f"{spent} rose"
    if discrimination and discrimination[1] < min_discrimination:
        return Verdict.INCONCLUSIVE, (
            "the policy's answers are graded hardly better than answers to other questions: it is hardly ever right, "
            "or the judge likes everything"
        )
    rose, saved = right_low > 0 and chance < SIGNIFICANT, spent_high < 0
    is_or_are = "is" if criterion == "cost" else "are"
    if criterion == "quality" and right_low > 0 and not rose:
        return Verdict.INCONCLUSIVE, f"{right} changed in too few tasks to tell from chance (sign test: p={chance:.3f})"
    if criterion == "quality" and not rose:
        return Verdict.INCONCLUSIVE, f"{right} is not higher beyond the interval's noise"
    if criterion == "pareto" and not (rose or saved):
        return Verdict.INCONCLUSIVE, f"neither is {right} higher nor are {spent} lower, beyond the intervals' noise"
    if criterion in ("thrift", "cost") and not saved:
        return Verdict.INCONCLUSIVE, f"{spent} {is_or_are} not lower beyond the interval's noise"
    if right_low < -margin:
        return Verdict.INCONCLUSIVE, f"a loss of {right} of more than {margin:g} cannot be ruled out"
    if fell:
        return Verdict.INCONCLUSIVE, f"{right} fell in tasks of the kind {' and '.join(fell)}"
    less = f"{'less' if criterion == 'cost' else 'fewer'} {spent}"
    gains = [f"{right} is higher"] * (rose and criterion in ("quality", "pareto")) + [less] * saved
    return Verdict.PASS, ", ".join(gains) + f", {right} not lower" * (not rose or criterion in ("thrift", "cost"))


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """Return unbiased pass@k for `correct` right answers in `samples` (Chen et al. 2021, arXiv 2107.03374, eq. 1)."""
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@k needs 0 <= correct <= samples and 1 <= k <= samples, got {correct}, {samples}, {k}")
    return (
        float(1.0 - np.prod(1.0 - k / np.arange(samples - correct + 1, samples + 1))) if samples - correct >= k else 1.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorecard:
    """One policy's results over a list of tasks: each metric's value per task (mean over samples), by position."""

    task_ids: tuple[str, ...]
    kinds: tuple[str, ...]
    metrics: Mapping[str, tuple[float, ...]]
    mismatched: tuple[float, ...]
    """Grades of the same answers against another task's references: the judge's false-positive level."""
    failed: tuple[str, ...]
    """Ids of tasks with an episode that could not be run or judged. Their values are not results: see `without`."""
    pass_at_k: Mapping[str, float]
    sources: tuple[str, ...] = ()
    """Task.data_source of each task; () in a card of an older version."""
    ratio_parts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Numerators and denominators for Figures.ratios, per task like `metrics`; 0.0 if the task's episodes lack them."""
    evidence: tuple[JudgedEvidence, ...] = ()
    """Records of all episodes by which an evidence judge can be measured."""
    members: Mapping[str, Scorecard] = field(default_factory=dict)
    """For a suite: each member's card. The suite's card holds the metrics common to all; its kinds are member names."""

    @classmethod
    def of_suite(cls, members: Mapping[str, Scorecard], figures: Figures) -> Scorecard:
        """Combine the members' cards. figures: the suite's."""
        shared = [figures.shared(name, card.metrics) for name, card in members.items()]
        cards = list(members.values())
        return cls(
            task_ids=tuple(chain.from_iterable(card.task_ids for card in cards)),
            kinds=tuple(chain.from_iterable([name] * len(card.task_ids) for name, card in members.items())),
            metrics={name: tuple(chain.from_iterable(row[name] for row in shared)) for name in shared[0]},
            mismatched=tuple(chain.from_iterable(card.mismatched for card in cards)),
            failed=tuple(chain.from_iterable(card.failed for card in cards)),
            pass_at_k={k: fmean(card.pass_at_k[k] for card in cards) for k in cards[0].pass_at_k},
            sources=tuple(chain.from_iterable(card.sources for card in cards)),
            members=members,
        )

    @property
    def strata(self) -> Sequence[str] | None:
        """Member of each task in a suite, whose mean is the mean of the members' means; else None."""
        return self.kinds if self.members else None

    def means(self) -> dict[str, float]:
        if self.members:
            each = [self.means_of(member) for member in sorted(set(self.kinds))]
            return {name: fmean(row[name] for row in each) for name in self.metrics}
        return {name: fmean(values) for name, values in self.metrics.items()}

    def means_of(self, kind: str) -> dict[str, float]:
        return self._means_where(self.kinds, kind)

    def by_source(self) -> dict[str, dict[str, float]]:
        """Return the means over the tasks of each data source; empty for a single source."""
        sources = sorted({source for source in self.sources if source})
        return {source: self._means_where(self.sources, source) for source in sources} if len(sources) > 1 else {}

    def _means_where(self, labels: Sequence[str], label: str) -> dict[str, float]:
        rows = [i for i, found in enumerate(labels) if found == label]
        return {name: fmean(values[i] for i in rows) for name, values in self.metrics.items()}

    def shares(self, figures: Figures, kind: str | None = None) -> dict[str, dict[str, float]]:
        """Return the shares of Figures.ratios, over all tasks or those of one kind."""
        rows = [i for i, k in enumerate(self.kinds) if kind is None or k == kind]
        return figures.shares({name: fmean(values[i] for i in rows) for name, values in self.ratio_parts.items()})

    def without(self, failed: Collection[str]) -> Scorecard:
        """Return the card without these tasks: an outage must look neither like a mistake nor like frugality. (pass@k
        keeps them in its denominator.) Raises DataError if fewer than two tasks are left."""
        rows = [i for i, task_id in enumerate(self.task_ids) if task_id not in failed]
        if len(rows) < 2:
            raise DataError(
                f"{len(failed)} of {len(self.task_ids)} tasks of an evaluation failed for infrastructure reasons, and "
                "two are needed; see the earlier note for the cause. Repair it, or raise run.eval.tasks"
            )
        return replace(
            self,
            task_ids=tuple(self.task_ids[i] for i in rows),
            kinds=tuple(self.kinds[i] for i in rows),
            metrics={name: tuple(values[i] for i in rows) for name, values in self.metrics.items()},
            mismatched=tuple(self.mismatched[i] for i in rows),
            sources=tuple(self.sources[i] for i in rows) if self.sources else (),
            ratio_parts={name: tuple(values[i] for i in rows) for name, values in self.ratio_parts.items()},
        )

    def to_json(self) -> dict[str, Any]:
        members = {name: card.to_json() for name, card in self.members.items()}
        row = asdict(replace(self, members={}))
        return row | {"members": members} if members else {k: v for k, v in row.items() if k != "members"}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Scorecard:
        return cls(
            task_ids=tuple(row["task_ids"]),
            kinds=tuple(row["kinds"]),
            metrics={k: tuple(v) for k, v in row["metrics"].items()},
            mismatched=tuple(row["mismatched"]),
            failed=tuple(row["failed"]),
            pass_at_k=dict(row["pass_at_k"]),
            sources=tuple(row.get("sources", ())),
            ratio_parts={k: tuple(v) for k, v in row.get("ratio_parts", {}).items()},
            evidence=tuple(JudgedEvidence(*judged) for judged in row.get("evidence", ())),
            members={name: cls.from_json(card) for name, card in row.get("members", {}).items()},
        )


async def _mismatched(
    judge: AnswerJudge, groups: Sequence[ScoredGroup], world: ProcessGroup
) -> tuple[list[float], set[str]]:
    """Grade answer i against the references of the task half a list away; also return the tasks the judge failed on."""
    others = [groups[(i + max(1, len(groups) // 2)) % len(groups)].group.task for i in range(len(groups))]
    answers = [group.group.episodes[0].answer for group in groups]

    async def graded(pairs: Sequence[tuple[Task, str | None]]) -> list[float | None]:
        found: list[float | None] = []
        for other, answer in pairs:
            try:
                found.append((await judge.grade(other, [answer]))[0].score if answer else 0.0)
            except EpisodeError as e:  # a task without references cannot be matched by mistake
                found.append(0.0 if e.kind == "no_reference" else None)
        return found

    grades = await share(world, list(zip(others, answers, strict=True)), graded)
    failed = {group.group.task.id for group, grade in zip(groups, grades, strict=True) if grade is None}
    return [grade or 0.0 for grade in grades], failed


async def evaluate(
    *,
    runner: Runner,
    judge: AnswerJudge,
    reward: GroupReward,
    tasks: Sequence[Task],
    sampling: SamplingParams,
    stream: str,
    samples_per_task: int,
    prices: Mapping[str, float],
    rollout: RolloutSettings,
    max_error_fraction: float,
    world: ProcessGroup | None = None,
    on_episode: Callable[[], object] = lambda: None,
) -> tuple[Scorecard, list[ScoredGroup]]:
    """Run every task `samples_per_task` times. `stream` seeds the sampling, so equal streams pair up. prices: prices of
    calls that replace the environment's. world: the processes that share the work; with several, await it inside
    RunContext.do. on_episode: called after each of this process's episodes. Raises ConfigError for the price of a call
    that the environment does not count."""
    if len(tasks) < 2:
        raise DataError(f"an evaluation over {len(tasks)} tasks says nothing; give a split of at least 2 (better 400)")

    async def scored_groups(own: Sequence[Task]) -> list[ScoredGroup]:
        groups = await run_groups(
            runner,
            own,
            group_size=samples_per_task,
            stream=stream,
            sampling=sampling,
            max_concurrent_episodes=rollout.max_concurrent_episodes,
            episode_timeout_s=rollout.episode_timeout_s,
            episode_retries=rollout.episode_retries,
            on_episode=on_episode,
        )
        return await score_groups(reward, groups)

    world = world or Alone()
    heap.give_back()  # frees training's memory: an evaluation holds more contexts at once than a step
    scored = await share(world, tasks, scored_groups)
    heap.give_back()
    for line in new_failures(scored, set()):
        _LOG.warning("%s", line)
    refuse_failures(scored, max_error_fraction=max_error_fraction)
    figures = runner.figures
    paid = figures.priced(prices)
    rows, parts = list[Mapping[str, float]](), list[Mapping[str, float]]()
    for group in scored:
        episodes = group.group.episodes
        rows.append(_mean([figures.row(e, r, paid) for e, r in zip(episodes, group.rewards, strict=True)]))
        parts.append(_mean([figures.ratio_parts(e, r) for e, r in zip(episodes, group.rewards, strict=True)]))
    mismatched, failed = await _mismatched(judge, scored, world)
    failed |= {g.group.task.id for g in scored if any(r is None for r in g.rewards)}
    card = Scorecard(
        task_ids=tuple(t.id for t in tasks),
        kinds=tuple(str(t.metadata.get("kind", "")) for t in tasks),
        metrics=_columns(rows),
        mismatched=tuple(mismatched),
        failed=tuple(sorted(failed)),
        pass_at_k=_pass_at_k(scored, samples_per_task),
        sources=tuple(t.data_source for t in tasks),
        ratio_parts=_columns(parts),
        evidence=tuple(judged_evidence(episode for group in scored for episode in group.group.episodes)),
    )
    return card, scored


def _mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: fmean(row.get(name, 0.0) for row in rows) for name in dict.fromkeys(chain.from_iterable(rows))}


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, ...]]:
    """Return a column for each metric; 0.0 if a row lacks it."""
    return {name: tuple(row.get(name, 0.0) for row in rows) for name in dict.fromkeys(chain.from_iterable(rows))}


def _pass_at_k(scored: Sequence[ScoredGroup], samples: int) -> dict[str, float]:
    """Return pass@k for k = 1, 2, 4 … ≤ samples, and avg@samples; right = the judge's full mark."""
    right = [sum(r is not None and r.correctness >= 1.0 for r in group.rewards) for group in scored]
    found = {}
    k = 1
    while k <= samples:
        found[f"pass@{k}"] = fmean(pass_at_k(n, samples, k) for n in right)
        k *= 2
    found[f"avg@{samples}"] = fmean(n / samples for n in right)
    return found


def compare(baseline: Scorecard, trained: Scorecard) -> dict[str, list[float]]:
    """Return {metric: [mean, low, high]} of trained − baseline, paired by task. Raises DataError if tasks differ."""
    if baseline.task_ids != trained.task_ids:
        raise DataError(
            "baseline and trained were evaluated on different tasks; evaluate both on the same split and count"
        )
    return {
        name: list(paired_difference(baseline.metrics[name], trained.metrics[name], strata=trained.strata))
        for name in trained.metrics
        if name in baseline.metrics
    }


FEWEST = 20
"""Least number of tasks for a kind to be tested for a fall."""


def measured(card: Scorecard, before: Scorecard, after: Scorecard, *, figures: Figures, note: str) -> dict[str, Any]:
    """Return a baseline's greedy row in eval.json: its headline figures over the `n` tasks on which neither it nor a
    policy failed, also by kind of task and, if there are several, by data source. `gain`: the trained policy's quality
    minus the baseline's, [mean, low, high], paired by task."""
    failed = {*before.failed, *after.failed, *card.failed}
    card, trained = card.without(failed), after.without(failed)

    def headline(means: Mapping[str, float]) -> dict[str, float]:
        return {metric: means[metric] for metric in figures.headline}

    return {
        **headline(card.means()),
        "n": len(card.task_ids),
        "gain": compare(card, trained)[figures.quality],
        "note": note,
        "kinds": {kind: headline(card.means_of(kind)) for kind in sorted(set(card.kinds)) if kind},
        **({"sources": {s: headline(row) for s, row in sources.items()}} if (sources := card.by_source()) else {}),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Both policies, greedy and sampled, and the verdict on them; `to_json` is eval.json."""

    figures: Figures
    baseline: Mapping[str, Scorecard]
    trained: Mapping[str, Scorecard]
    oracle: Scorecard | None
    margin: float
    min_discrimination: float
    criterion: Criterion
    baselines: Mapping[str, Scorecard] = field(default_factory=dict)
    """Greedy scorecards of the baselines that need no training (environments.base)."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Baseline -> how to read its figures, if they mean something else than a policy's."""
    members: Mapping[str, Evaluation] = field(default_factory=dict)
    """For a suite: the evaluation of each member."""

    def to_json(self) -> dict[str, Any]:
        """Return eval.json's content. Each mode covers the tasks on which neither policy failed for infrastructure
        reasons; `n` is the greedy count. `denominator`: figures over all tasks, with a failed episode counted as wrong.
        `fell`: see `_fell`. `baselines`, if there are any: see `measured`. Sections of Figures.ratios, by mode and by
        kind, if a task has their denominators, and again at the top level for the trained policy, greedy. `sources`:
        see `_by_source`. `evidence`, if tasks have gold support: see judges.evidence.measure; over the episodes of both
        policies in all modes. `suite`: the same content for each member."""
        quality, spending = self.figures.quality, self.figures.spending
        cards = [card for mode in self.trained for card in (self.baseline[mode], self.trained[mode])]
        evidence = evidence_figures([judged for card in cards for judged in card.evidence])
        modes: dict[str, Any] = {}
        kept: dict[str, int] = {}
        for mode in self.trained:
            before, after = self.baseline[mode], self.trained[mode]
            failed = {*before.failed, *after.failed}
            baseline, trained = before.without(failed), after.without(failed)
            kept[mode] = len(trained.task_ids)
            modes[mode] = {
                "baseline": baseline.means(),
                "trained": trained.means(),
                "difference": compare(baseline, trained),
                "sign_test": sign_test(baseline.metrics[quality], trained.metrics[quality]),
                "discrimination": list(
                    paired_difference(trained.mismatched, trained.metrics[quality], strata=trained.strata)
                ),
                "pass_at_k": {"baseline": baseline.pass_at_k, "trained": trained.pass_at_k},
                "failures": {"baseline": len(before.failed), "trained": len(after.failed)},
                "denominator": {
                    "n": len(after.task_ids),
                    "baseline": self._over_all(before),
                    "trained": self._over_all(after),
                },
                "kinds": {
                    k: {"baseline": baseline.means_of(k), "trained": trained.means_of(k)}
                    | self._shares(baseline, trained, k)
                    for k in sorted(set(trained.kinds))
                    if k
                },
                **self._by_source(baseline, trained),
                **self._shares(baseline, trained),
            }
        greedy, fell = modes["greedy"], [row for mode in modes for row in self._fell(mode)]
        decision, reason = verdict(
            greedy["difference"],
            greedy["discrimination"] if self.figures.is_graded else None,
            quality=quality,
            spending=spending,
            criterion=self.criterion,
            margin=self.margin,
            min_discrimination=self.min_discrimination,
            fell=[row["kind"] for row in fell if row["mode"] == "greedy"],
            chance=greedy["sign_test"],
        )
        return {
            "verdict": decision.value,
            "reason": reason,
            "n": kept["greedy"],
            **modes,
            "criterion": self.criterion,
            "fell": fell,
            **({"oracle": self.oracle.without(self.oracle.failed).means()} if self.oracle else {}),
            **{section: greedy[section]["trained"] for section in self.figures.ratios if section in greedy},
            **({"evidence": evidence} if evidence else {}),
            **({"baselines": {name: self._measured(name) for name in self.baselines}} if self.baselines else {}),
            **({"suite": {name: of.to_json() for name, of in self.members.items()}} if self.members else {}),
            "figures": self.figures.to_json(),
        }

    def _by_source(self, baseline: Scorecard, trained: Scorecard) -> dict[str, Any]:
        """Return `sources`: data source -> `n` tasks and both policies' means; empty for a single source."""
        before, after, counts = baseline.by_source(), trained.by_source(), Counter(trained.sources)
        rows = {s: {"n": counts[s], "baseline": before[s], "trained": after[s]} for s in after}
        return {"sources": rows} if rows else {}

    def _shares(self, baseline: Scorecard, trained: Scorecard, kind: str | None = None) -> dict[str, Any]:
        """Return section of Figures.ratios -> policy -> name -> share, without sections that neither policy has."""
        of = {"baseline": baseline.shares(self.figures, kind), "trained": trained.shares(self.figures, kind)}
        sections = [section for section in self.figures.ratios if any(section in row for row in of.values())]
        return {section: {name: row.get(section, {}) for name, row in of.items()} for section in sections}

    def _measured(self, name: str) -> dict[str, Any]:
        policies, note = (self.baseline["greedy"], self.trained["greedy"]), self.notes.get(name, "")
        return measured(self.baselines[name], *policies, figures=self.figures, note=note)

    def _fell(self, mode: str) -> list[dict[str, Any]]:
        """Return the kinds of task whose quality fell beyond noise. The interval is corrected for the number of kinds
        (Bonferroni): with K kinds it holds 1 − 0.05 / K of the draws, so more kinds need larger falls. Kinds of fewer
        than FEWEST tasks are left out, since a bootstrap over a handful of tasks is unreliable."""
        failed = {*self.baseline[mode].failed, *self.trained[mode].failed}
        before, after = self.baseline[mode].without(failed), self.trained[mode].without(failed)
        count = Counter(after.kinds)
        kinds = sorted(kind for kind, n in count.items() if kind and n >= FEWEST)
        found = []
        for kind in kinds:
            rows = [
                [v for v, k in zip(c.metrics[self.figures.quality], c.kinds, strict=True) if k == kind]
                for c in (before, after)
            ]
            difference = paired_difference(*rows, resamples=2000 * len(kinds), level=1 - 0.05 / len(kinds))
            if difference[2] < 0:
                found.append(
                    {"kind": kind, "mode": mode, "n": count[kind], "kinds": len(kinds), "difference": list(difference)}
                )
        return found

    def _over_all(self, card: Scorecard) -> dict[str, float]:
        """Return quality and reward over all tasks, 0 for a failed episode. A failed episode's spending is unknown, so
        there are no other means over all tasks."""
        means = card.means()
        return {name: means[name] for name in (self.figures.quality, "reward")}
