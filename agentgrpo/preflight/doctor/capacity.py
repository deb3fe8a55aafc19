"""Checks of capacity: device memory, disk and the model's context window."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import Exit
from agentgrpo.preflight.doctor.case import Case, told
from agentgrpo.preflight.doctor.finding import CheckNotes, Skipped
from agentgrpo.preflight.plan.device import GIB
from agentgrpo.preflight.plan.knobs import Knob, helpful
from agentgrpo.preflight.plan.limits import overruns
from agentgrpo.records.trajectories import write_trajectories

REHEARSED = 500
"""Number of tasks whose opening prompts are rendered."""
FULL = 0.9


def look_at_memory(case: Case, found: CheckNotes) -> None:
    """The memory that `agentgrpo plan` estimates, checked before anything is loaded."""
    plan = case.plan
    found.facts |= {
        "needed GiB": round(plan.memory.need / GIB, 3),
        "device GiB": None if plan.memory_bytes is None else round(plan.memory_bytes / GIB, 3),
        "device": plan.whose,
    }
    for short in overruns(plan):
        if short.kind == "memory":
            found.problem(
                f"a device needs {plan.memory.need / GIB:.2f} GiB, and {short.limit / GIB:.2f} GiB are {short.said}",
                why="the run would end when its memory is full, be it hours after its start",
                key=_key(helpful(case.config, plan), "memory", "hardware.device"),
            )


def _key(knobs: Sequence[Knob], of: str, otherwise: str) -> str:
    """The setting that makes the run fit; else the one that saves most; else `otherwise`."""
    own = [knob for knob in knobs if knob.of == of]
    return next((knob.text for knob in own if knob.fits), own[0].text if own else otherwise)


async def look_at_disk(case: Case, found: CheckNotes) -> None:
    """The planned checkpoints, and trajectories as large as the sample's, against the free disk space."""
    plan = case.plan
    if (closed := _closed(Path(case.run.dir))) is not None:
        found.problem(
            f"run.dir={case.run.dir}: nothing can be written in {closed}", why="the run cannot begin", key="run.dir"
        )
    episode = _bytes_per_episode(case)
    trajectories = episode * (plan.episodes.trained + plan.episodes.evaluated)
    needed, free = plan.disk_bytes + trajectories, plan.free_bytes
    found.facts |= {
        "checkpoints GiB": round(plan.disk_bytes / GIB, 3),
        "one checkpoint GiB": round(plan.memory.checkpoint_bytes / GIB, 3),
        "trajectories GiB": round(trajectories / GIB, 3),
        "bytes per episode": episode,
        "free GiB": None if free is None else round(free / GIB, 3),
    }
    if free is not None and needed > free:
        found.problem(
            f"the run writes up to {needed / GIB:.2f} GiB ({plan.disk_bytes / GIB:.2f} GiB of checkpoints, "
            f"{trajectories / GIB:.2f} GiB of trajectories), and {free / GIB:.2f} GiB are free",
            why="a full disk stops the run, and what it was writing is lost",
            key="run.keep_last" if plan.disk_bytes > trajectories else "run.record_tokens",
        )


def _closed(run_dir: Path) -> Path | None:
    """The nearest existing parent of `run_dir` if it is not writable, else None."""
    there = next(folder for folder in (run_dir.absolute(), *run_dir.absolute().parents) if folder.exists())
    return None if there.is_dir() and os.access(there, os.W_OK | os.X_OK) else there


def _bytes_per_episode(case: Case) -> int:
    """Mean bytes per episode of the sample, written to the doctor's temporary folder; 0 without a sample."""
    try:
        sample = case.sample
    except Skipped:
        return 0
    path = Path(case.folder) / "trajectories" / "sample.jsonl"
    path.parent.mkdir(exist_ok=True)
    write_trajectories(
        path,
        scored=sample.scored,
        advantages=[[None] * len(g.rewards) for g in sample.scored],
        dropped=[None] * len(sample.scored),
        step=0,
        seed=case.run.seed,
        record_tokens=case.run.record_tokens,
    )
    written = sum(file.stat().st_size for file in path.parent.iterdir())
    return written // max(1, sum(len(g.rewards) for g in sample.scored))


async def look_at_context(case: Case, found: CheckNotes) -> None:
    """Lengths of prompts and turns against the engine's context window."""
    built = case.built
    held, wanted = built.engine.max_context, case.rollout.max_tokens
    _rehearsed(case, found)
    found.facts |= {"engine holds": held, "of a turn": wanted}
    own = int(built.policy.model.config.get_text_config().max_position_embeddings)
    if held > own:
        found.problem(
            f"the engine holds contexts of {held} tokens, and the model was made for {own}",
            why="positions beyond those it was trained on are noise to it",
            key="engine.max_context",
        )
    episodes = case.episodes
    branches = [b for e in episodes for b in e.branches]
    prompt = max((b.num_prompt_tokens for b in branches), default=0)
    longest = max((len(b.token_ids) for b in branches), default=0)
    overflown = sum(e.exit is Exit.CONTEXT_OVERFLOW for e in episodes)
    truncated = sum(e.is_truncated for e in episodes)
    found.facts |= {
        "longest prompt": prompt,
        "longest context": longest,
        "truncated": truncated,
        "overflown": overflown,
        "episodes": len(episodes),
    }
    key = "engine.max_context" if case.config["engine"].get("max_context") else "rollout.max_tokens"
    if prompt + wanted > held:
        found.problem(
            f"a prompt of {prompt} tokens and a turn of {wanted} take {prompt + wanted}, and the engine holds {held}",
            why="the first turn is cut short, and nothing comes after it",
            key=key,
        )
    elif overflown > 0.25 * len(episodes):
        found.problem(
            f"in {overflown} of {len(episodes)} episodes the context of {held} tokens was full",
            why="they end without an answer, whatever the policy wanted to do",
            key="engine.max_context",
        )
    elif overflown or longest > FULL * held:
        found.note(
            f"contexts of up to {longest} tokens of {held}, and {overflown} of {len(episodes)} episodes overflew",
            why="as episodes grow in training, more of them will end so",
            key="engine.max_context",
        )


def _rehearsed(case: Case, found: CheckNotes) -> None:
    tasks = case.built.train_tasks[:REHEARSED]
    refused: list[str] = []
    for task in tasks:
        try:
            case.built.runner.rehearse(task)
        except (ConfigError, DataError) as error:
            refused.append(told(error))
    found.facts["openings written"] = len(tasks)
    if refused:
        found.problem(
            f"{len(refused)} of {len(tasks)} tasks cannot be begun; the first: {refused[0]}",
            why="the first of them that is drawn ends the run",
            key="environment.max_context",
        )
