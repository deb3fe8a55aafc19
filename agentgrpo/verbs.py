"""What each word of the command line does: a run directory locked, its parts wired, a recipe run."""

from __future__ import annotations

import asyncio
import json
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
from agentgrpo.recipes.parts import Progress
from agentgrpo.recipes.session import Session, examine_only, run_session
from agentgrpo.recipes.start import Start
from agentgrpo.records.screen import Screen
from agentgrpo.settings import RunSettings
from agentgrpo.training.checkpoint import STATE, CheckpointStore
from agentgrpo.wiring import Wiring


def train(config: Mapping[str, Any], command: Command) -> Outcome:
    """`agentgrpo train`: a new run in an empty (or never started) run directory."""
    run: RunSettings = build_node("run", config["run"])
    with _run_directory(run) as screen:
        run_dir = Path(run.dir)
        _refuse_used(run)
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
            write_atomic(run_dir / SNAPSHOT, command.snapshot.encode())
            return _finish(Wiring(config, command.snapshot, screen).session(None), Progress())
        checkpoint = store.latest()
        wiring = Wiring(config, command.snapshot, screen, weights=checkpoint.path)
        for note in refuse_drift(checkpoint.state, wiring.fixed_state(checkpoint.state["start"])):
            screen.line(f"note: {note}")
        store.rewind(checkpoint)
        before = (run_dir / SNAPSHOT).read_bytes()
        if before != command.snapshot.encode():
            write_atomic(run_dir / f"config-until-{checkpoint.step:06d}.yaml", before)
            write_atomic(run_dir / SNAPSHOT, command.snapshot.encode())
        screen.line(f"resumed {run.dir} after step {checkpoint.step} of {run.max_steps}")
        if checkpoint.step >= run.max_steps:
            screen.line(f"nothing is left to train; run.max_steps={checkpoint.step + 50} would add 50 steps")
        session = wiring.session(checkpoint)
        progress = Progress(
            step=checkpoint.step,
            skipped_in_a_row=checkpoint.state["skipped_in_a_row"],
            dev=checkpoint.state["dev"],
            dev_step=checkpoint.state["dev_step"],
            saved_step=checkpoint.step,
        )
        return _finish(session, progress)


def evaluate(config: Mapping[str, Any], command: Command) -> Outcome:
    """`agentgrpo eval`: a checkpoint against a baseline (default: the weights its run started from)."""
    run: RunSettings = build_node("run", config["run"])
    arguments = command.arguments
    for name in ("ckpt", "baseline"):
        path = arguments[name]
        if path is None and name == "ckpt":
            raise ConfigError("eval needs a checkpoint: --ckpt RUN/checkpoints/step-000150")
        if path is not None and not Path(path, "config.json").is_file():
            raise ConfigError(f"--{name} {path} holds no model; give a checkpoint, as RUN/checkpoints/step-000150")
    with _run_directory(run) as screen:
        _refuse_used(run)
        write_atomic(Path(run.dir) / SNAPSHOT, command.snapshot.encode())
        start = arguments["baseline"] or _start_of(arguments["ckpt"], screen)
        weights = [Path(path) if path else None for path in (start, arguments["ckpt"])]
        wirings = [Wiring(config, command.snapshot, screen, weights=path) for path in weights]
        baseline, trained = (wiring.examiner(test=True, dev=False) for wiring in wirings)
        result = asyncio.run(examine_only(baseline, trained, screen, grace_s=run.grace_s))
        code = Verdict(result["verdict"]).exit_code if arguments["gate"] else 0
        return Outcome(exit_code=code, objective=result["sampled"]["trained"]["reward"])


def _refuse_used(run: RunSettings) -> None:
    run_dir = Path(run.dir)
    if CheckpointStore(run_dir=run_dir).candidates() or (run_dir / "metrics.jsonl").exists():
        raise ConfigError(
            f"run.dir={run.dir} already holds a run; go on with it: agentgrpo resume '{run.dir}', "
            "or choose another directory"
        )


def _start_of(checkpoint: str | None, screen: Screen) -> str | None:
    """The folder of the weights that the checkpoint's run started from, where it still holds them."""
    state = Path(checkpoint or ".", STATE)
    if checkpoint is None or not state.is_file():
        return None
    start = json.loads(state.read_bytes())["state"]["start"]
    if Start(Path(start["folder"])).state() == start:
        return str(start["folder"])
    screen.line(
        f"note: {start['folder']} no longer holds the weights this run started from; the baseline is what the settings "
        "start from today. Give --baseline PATH to compare with others"
    )
    return None


def _finish(session: Session, progress: Progress) -> Outcome:
    result = asyncio.run(run_session(session, progress))
    return Outcome(objective=result["sampled"]["trained"]["reward"] if result else None)


@contextmanager
def _run_directory(run: RunSettings) -> Iterator[Screen]:
    """The run directory, locked for this process, and the screen. Library warnings become lines of the screen."""
    try:
        Path(run.dir).mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"run.dir={run.dir}: {e.strerror}; give a directory, or a place where one can be made") from e
    logging.captureWarnings(True)
    transformers.logging.disable_progress_bar()
    with RunLock(Path(run.dir)), Screen(mode=run.screen) as screen:
        yield screen
