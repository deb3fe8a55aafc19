"""What each word of the command line does: a run directory locked, its parts wired, a recipe run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers

from agentgrpo.build import build_node
from agentgrpo.cli import Command, Outcome
from agentgrpo.compose import SNAPSHOT
from agentgrpo.durable import RunLock, write_atomic
from agentgrpo.errors import ConfigError
from agentgrpo.recipes.bootstrap import Verdict
from agentgrpo.recipes.drift import refuse_drift
from agentgrpo.recipes.session import Session, examine_only, run_session
from agentgrpo.recipes.train import Progress
from agentgrpo.records.screen import Screen
from agentgrpo.settings import RunSettings
from agentgrpo.training.checkpoint import CheckpointStore
from agentgrpo.wiring import Wiring


def train(config: Mapping[str, Any], command: Command) -> Outcome:
    """`agentgrpo train`: a new run in an empty (or never started) run directory."""
    run: RunSettings = build_node("run", config["run"])
    with _run_directory(run) as screen:
        run_dir = Path(run.dir)
        if CheckpointStore(run_dir=run_dir).candidates() or (run_dir / "metrics.jsonl").exists():
            raise ConfigError(
                f"run.dir={run.dir} already holds a run; go on with it: agentgrpo resume '{run.dir}', "
                "or choose another directory"
            )
        write_atomic(run_dir / SNAPSHOT, command.snapshot.encode())
        screen.line(f"run directory: {run.dir}")
        session = Wiring(config, command.snapshot, screen).session(None)
        return _finish(session, Progress())


def resume(config: Mapping[str, Any], command: Command) -> Outcome:
    """`agentgrpo resume RUN`: go on from the newest valid checkpoint, bit-exactly."""
    run: RunSettings = build_node("run", config["run"])
    with _run_directory(run) as screen:
        run_dir = Path(run.dir)
        store = CheckpointStore(run_dir=run_dir, keep_last=run.keep_last, keep_best=run.keep_best)
        if not store.candidates() and not (run_dir / "metrics.jsonl").exists():
            screen.line(f"{run.dir} was stopped before its first checkpoint: it begins now, at step 0")
            return _finish(Wiring(config, command.snapshot, screen).session(None), Progress())
        checkpoint = store.latest()
        wiring = Wiring(config, command.snapshot, screen, weights=checkpoint.path)
        for note in refuse_drift(checkpoint.state, wiring.fixed_state(checkpoint.state["start"])):
            screen.line(f"note: {note}")
        store.rewind(checkpoint)
        write_atomic(run_dir / f"config-resumed-{checkpoint.step:06d}.yaml", command.snapshot.encode())
        screen.line(f"resumed {run.dir} after step {checkpoint.step} of {run.max_steps}")
        session = wiring.session(checkpoint)
        progress = Progress(
            step=checkpoint.step,
            skipped_in_a_row=checkpoint.state["skipped_in_a_row"],
            saved_step=checkpoint.step,
        )
        return _finish(session, progress)


def evaluate(config: Mapping[str, Any], command: Command) -> Outcome:
    """`agentgrpo eval`: a checkpoint (default: the start weights) against a baseline (default: the start weights)."""
    run: RunSettings = build_node("run", config["run"])
    arguments = command.arguments
    with _run_directory(run) as screen:
        write_atomic(Path(run.dir) / SNAPSHOT, command.snapshot.encode())
        baseline, trained = (
            Wiring(config, command.snapshot, screen, weights=Path(arguments[name]) if arguments[name] else None)
            for name in ("baseline", "ckpt")
        )
        result = asyncio.run(examine_only(baseline.examiner(), trained.examiner(), screen, grace_s=run.grace_s))
        code = Verdict(result["verdict"]).exit_code if arguments["gate"] else 0
        return Outcome(exit_code=code, objective=result["sampled"]["trained"]["reward"])


def _finish(session: Session, progress: Progress) -> Outcome:
    result = asyncio.run(run_session(session, progress))
    return Outcome(objective=result["sampled"]["trained"]["reward"] if result else None)


@contextmanager
def _run_directory(run: RunSettings) -> Iterator[Screen]:
    """The run directory, locked for this process, and the screen. Library warnings become lines of the screen."""
    logging.captureWarnings(True)
    transformers.logging.disable_progress_bar()
    with RunLock(Path(run.dir)), Screen(mode=run.screen) as screen:
        yield screen
