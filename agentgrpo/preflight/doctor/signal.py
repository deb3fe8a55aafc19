"""Whether step 0 has a learning signal, whether guards would trigger, and whether the judge can be trusted."""

from __future__ import annotations

from statistics import fmean, pstdev

from agentgrpo.grpo.samples import is_zero_variance
from agentgrpo.preflight.doctor.case import Case
from agentgrpo.preflight.doctor.finding import CheckNotes, Skipped
from agentgrpo.rollout.metrics import rollout_metrics
from agentgrpo.rollout.scoring import keep_trainable
from agentgrpo.run.equipment import build_part
from agentgrpo.run.guards import Guard
from agentgrpo.run.judging import check_judge

FEW = 0.25
"""A share of groups with signal below this wastes most of the rollout."""
CANARIES, JUDGED_TASKS = 16, 4
SLOW_S = 2.0
"""Seconds of judging in a step that are always acceptable."""


async def look_at_signal(case: Case, found: CheckNotes) -> None:
    """Rewards within groups: a group with equal rewards gives no gradient."""
    built, scored = case.built, case.sample.scored
    whole = [g for g in scored if all(r is not None for r in g.rewards)]
    if not whole:
        raise Skipped("needs: episodes, and no group was scored whole")
    equal = sum(is_zero_variance(g, built.algorithm) for g in whole)
    share = 1 - equal / len(whole)
    totals = [[r.total for r in g.rewards if r is not None] for g in whole]
    means = [fmean(group) for group in totals]
    found.facts |= {
        "groups": len(whole),
        "groups that teach nothing": equal,
        "reward mean": round(fmean(means), 4),
        "reward std within groups": round(fmean(pstdev(group) for group in totals), 4),
        "reward std between groups": round(pstdev(means), 4),
        "correctness": round(fmean(r.correctness for g in whole for r in g.rewards if r is not None), 4),
    }
    what = f"in {equal} of {len(whole)} groups of {case.rollout.group_size} all episodes have the same credit"
    key = "rollout.group_size" if built.algorithm.credit == "episode" else "algorithm.credit"
    if equal == len(whole):
        found.problem(
            f"{what}: mean reward {fmean(means):.3g}",
            why="no episode is better than another, so that there is no gradient: choose easier or harder tasks, a "
            "reward with more terms, a higher temperature, or a model that can do some of them",
            key="reward.terms",
        )
    elif share < FEW:
        found.note(what, why="most of what is sampled is thrown away; larger groups or dynamic sampling help", key=key)
    if equal < len(whole) and not any(r.correctness for g in whole for r in g.rewards if r is not None):
        found.note(
            f"none of {sum(map(len, totals))} episodes is right at all",
            why="what is learned is how to earn the other terms of the reward, until one is right by chance: choose "
            "easier tasks, a larger model, or a lower rollout.temperature for a small one",
            key="model",
        )


async def look_at_guards(case: Case, found: CheckNotes) -> None:
    """The run's own guards on the sample's metrics; only absolute limits, which need no earlier step."""
    built = case.built
    _ = case.episodes
    _, reasons = keep_trainable(case.sample.scored, is_zero_variance=lambda g: is_zero_variance(g, built.algorithm))
    figures = built.runner.figures
    prices = figures.priced(built.run.eval.prices)
    tags = rollout_metrics(case.sample.scored, reasons, lambda episode: figures.cost(episode.metrics, prices))
    watching = 0
    for name, node in case.config["guards"].items():
        guard = Guard(**{k: v for k, v in node.items() if k != "name"})
        if guard.is_relative or guard.metric not in tags:
            continue
        watching += 1
        value = tags[guard.metric]
        if not guard.is_beyond(value, ()):
            continue
        what = f"guards.{name} would ring: {guard.metric} is {value:.3g}, {guard.when} {guard.limit:g}"
        if guard.patience > 1:
            what += f" (it waits for {guard.patience} steps)"
        why = guard.hint or f"it was set to {guard.action}"
        if guard.action == "warn":
            found.note(what, why=why, key=f"guards.{name}.limit")
        else:
            found.problem(f"{what}, which ends in {guard.action}", why=why, key=f"guards.{name}.limit")
    found.facts |= {"guards that compare at once": watching, "trainable ratio": tags.get("tokens/trainable_ratio")}


async def look_at_judging_time(case: Case, found: CheckNotes) -> None:
    """Seconds of judging in a step, compared with its seconds of sampling."""
    sample = case.sample
    factor = case.rollout.tasks_per_step / max(1, len(sample.scored))
    judging, sampling = sample.reward_s * factor, sample.generation_s * factor
    found.facts |= {
        "judging s per step": round(judging, 3),
        "sampling s per step": round(sampling, 3),
        "of": f"{len(sample.scored)} of {case.rollout.tasks_per_step} groups, scaled up",
    }
    if judging > max(sampling, SLOW_S):
        found.problem(
            f"judging takes about {judging:.3g} s of a step, and sampling {sampling:.3g} s: "
            f"{judging * case.run.max_steps / 3600:.2g} hours of the run",
            why="the step waits for the judge, and the devices with it",
            key="judge.max_concurrent" if "max_concurrent" in case.config["judge"] else "judge.name",
        )


async def look_at_judge_trust(case: Case, found: CheckNotes) -> None:
    """Known wrong answers and right ones; `agentgrpo check judge` tests more of both."""
    if "judge" in case.broken:
        raise Skipped("needs: judge, which could not be built")
    built = case.built
    tasks = built.dataset.split("test")[:JUDGED_TASKS] or built.dataset.split("train")[:JUDGED_TASKS]
    judge = build_part(built.settings.judge, built.meter)  # closed with the check
    report = await check_judge(judge, tasks, count=CANARIES, seed=case.run.seed)
    found.facts["tried"] = list(report.lines)
    for finding in report.findings:
        found.problem(
            finding,
            why="a policy finds what its judge pays for, and would learn that instead of the task",
            key="judge.name",
        )
