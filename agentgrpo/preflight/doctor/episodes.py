"""Real episodes: groups of the first step, sampled by the run's own environment and engine and scored by its reward."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from statistics import fmean

from agentgrpo.preflight.doctor.case import STREAM, Case, Sample
from agentgrpo.preflight.doctor.finding import CheckNotes
from agentgrpo.preflight.doctor.recording import RecordingEngine
from agentgrpo.rollout.groups import run_groups
from agentgrpo.rollout.scoring import episode_failures, score_groups
from agentgrpo.run.assembly import task_order
from agentgrpo.services.asking import asking_step
from agentgrpo.training.canary import have_sample, is_pooled

TASKS = 6
"""Maximum number of tasks taken from the first step."""


async def look_at_episodes(case: Case, found: CheckNotes) -> None:
    """Sample and score the episodes; all other checks of tokens and rewards use them."""
    built = case.built
    await _sync(case)
    recording = RecordingEngine(built.engine)
    runner = replace(built.runner, engine=recording)
    of_step = task_order(built).take(0)
    tasks = of_step[:: max(1, len(of_step) // TASKS)][:TASKS]  # spread over all kinds of task
    began = time.perf_counter()
    try:
        async with asyncio.timeout(case.run.step_timeout_s):
            with asking_step(0):
                groups = await run_groups(
                    runner,
                    tasks,
                    group_size=case.rollout.group_size,
                    stream=STREAM,
                    sampling=built.sampling,
                    max_concurrent_episodes=case.rollout.max_concurrent_episodes,
                    episode_timeout_s=case.rollout.episode_timeout_s,
                    episode_retries=case.rollout.episode_retries,
                )
                between = time.perf_counter()
                scored = await score_groups(built.reward, groups)
    except TimeoutError:
        found.problem(
            f"{len(tasks)} of a step's {case.rollout.tasks_per_step} tasks took more than {case.run.step_timeout_s:g} "
            "s to sample and score",
            why="a step that takes longer is abandoned, and this one does: the run would train on nothing",
            key="run.step_timeout_s",
        )
        return
    ended = time.perf_counter()
    sample = Sample(scored=scored, recording=recording, generation_s=between - began, reward_s=ended - between)
    case.keep(sample)
    _failures(sample, found)
    _facts(sample, found)


async def _sync(case: Case) -> None:
    """Load the weights as a run does before step 0. Raises TrainingError if servers sample from other weights."""
    built = case.built
    if is_pooled(built.engine):
        await have_sample(built.engine, built.policy, built.canary_ids, 0)
    else:
        await built.engine.load_weights(0)


def _failures(sample: Sample, found: CheckNotes) -> None:
    failures = episode_failures(sample.scored)
    if not failures:
        return
    total = sum(len(group.rewards) for group in sample.scored)
    kinds = ", ".join(f"{kind}: {n}" for kind, n in sorted(Counter(f.kind for f in failures).items()))
    found.problem(
        f"{len(failures)} of {total} episodes failed for infrastructure reasons ({kinds}); the first: "
        f"{' '.join(failures[0].message.split())}",
        why="a group with such an episode is not trained on, and past run.max_error_fraction the run stops",
        key={"judge": "judge", "reward": "reward.terms"}.get(failures[0].stage, "run.max_error_fraction"),
    )


def _facts(sample: Sample, found: CheckNotes) -> None:
    episodes = sample.episodes
    found.facts |= {
        "groups": len(sample.scored),
        "episodes": sum(len(group.rewards) for group in sample.scored),
        "failed": len(episode_failures(sample.scored)),
        "seconds of generation": round(sample.generation_s, 3),
        "seconds of reward": round(sample.reward_s, 3),
        "exits": dict(sorted(Counter(str(e.exit) for e in episodes).items())),
    }
    if episodes:
        found.facts["turns per episode"] = round(fmean(len(e.turns) for e in episodes), 2)
