"""The functions of the command line's verbs: each locks a run directory, wires its parts and runs a recipe."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import transformers
import yaml

from agentgrpo.cli.jobs import report
from agentgrpo.config.build import PartNode, build_node
from agentgrpo.config.compose import SNAPSHOT, read_preset
from agentgrpo.config.folders import configs_dir
from agentgrpo.config.hardware import Hardware, Launch
from agentgrpo.config.settings import RunSettings
from agentgrpo.core.commands import Command, VerbResult
from agentgrpo.core.durable import RunLock, write_atomic
from agentgrpo.core.errors import AgentGrpoError, ConfigError, ProcessError, ProcessExit
from agentgrpo.core.outside import run_loop
from agentgrpo.models.export import export_model, require_model
from agentgrpo.models.loading import Start, saved_start
from agentgrpo.records.run_dir import EVAL, EVALUATED, RunDir
from agentgrpo.records.screen import Screen
from agentgrpo.run.assembly import refuse_unfit, session_of
from agentgrpo.run.baselines import Baselines
from agentgrpo.run.build import build_run, load_inputs, prepare_start, run_of
from agentgrpo.run.cpu_seconds import is_trained, trained_cpu_s
from agentgrpo.run.diagnostics import Diagnostics, Watch
from agentgrpo.run.drift import refuse_drift, refuse_other_settings
from agentgrpo.run.evaluate import Verdict
from agentgrpo.run.examine import Examiner
from agentgrpo.run.parts import Progress
from agentgrpo.run.preferences import write_preferences
from agentgrpo.run.report import report as report_result
from agentgrpo.run.resume import (
    RestoreOnRefusal,
    can_go_on,
    keep_configuration,
    kept_result,
    newest_checkpoint,
    next_commands,
    noting_stop,
    rewind,
    set_result_aside,
    way_on,
)
from agentgrpo.run.session import TrainingSession, examine_only, run_session, show_one
from agentgrpo.run.settings import Settings, settings_of
from agentgrpo.run.warm_start import WarmStart
from agentgrpo.training.checkpoint import CheckpointStore
from agentgrpo.training.process_group import ProcessGroup, agree, once, only_first
from agentgrpo.training.processes import processes

Config = Mapping[str, Any]


def train(config: Config, command: Command) -> VerbResult:
    """Run `agentgrpo train` or `agentgrpo sft`: a new run in an empty (or never started) run directory."""
    with _run_directory(config, command) as (settings, command, world, screen, watch):
        if command.verb == "sft" and settings.demonstrations.name == "none":
            raise ConfigError("sft imitates demonstrations, and demonstrations=none; choose oracle, chat or recorded")
        refuse_unfit(settings)
        baselines = _baselines(settings, command, world)
        engine = settings.engine
        if engine.says("trainable") is False:  # known before a warm start
            raise ConfigError(
                f"engine={engine.name} gives no exact log-probs: evaluate with it, agentgrpo eval engine={engine.name}"
            )
        once(world, lambda: _begin(settings.run, command))
        screen.line(f"run directory: {settings.run.dir}")
        session, progress = _new_session(settings, command, world, screen, watch)
        with noting_stop(Path(settings.run.dir), world, progress, settings.run.max_steps):
            result = run_loop(run_session(session, progress))
        del session  # frees memory for the models of baselines
        return _finish(settings.run, baselines, world, screen, watch, result, progress.step)


def resume(config: Config, command: Command) -> VerbResult:
    """Run `agentgrpo resume RUN`: continue from the newest valid checkpoint, bit-exactly."""
    with _run_directory(config, command) as (settings, command, world, screen, watch):
        run, run_dir = settings.run, Path(settings.run.dir)
        baselines = _baselines(settings, command, world)
        finish = partial(_finish, run, baselines, world, screen, watch)
        store = CheckpointStore(run_dir=run_dir, keep_last=run.keep_last, keep_best=run.keep_best)
        if once(world, lambda: not store.candidates() and not (run_dir / "metrics.jsonl").exists()):
            screen.line(f"{run.dir} was stopped before its first checkpoint: it begins now, at step 0")
            once(world, lambda: keep_configuration(run_dir, command.snapshot))
            session, progress = _new_session(settings, command, world, screen, watch)
        else:
            checkpoint = newest_checkpoint(store, world)
            now = yaml.safe_load(command.snapshot)
            refuse_other_settings(checkpoint.state["config"], now)  # before anything is built
            if (result := once(world, partial(kept_result, run, checkpoint.step, now))) is not None:
                more = f"run.max_steps={checkpoint.step + 50} adds 50 steps"
                screen.line(f"{run.dir} is finished: all {checkpoint.step} steps are trained and evaluated; {more}")
                if run.eval.baselines:  # they may be newly requested
                    keep_configuration(run_dir, command.snapshot)
                return finish(result, checkpoint.step)
            built = run_of(settings, command.snapshot, screen, world, weights=checkpoint.path)
            for note in refuse_drift(checkpoint.state, built.fixed_state(checkpoint.state["start"])):
                screen.line(f"note: {note}")
            if once(world, partial(rewind, run, store, checkpoint, command.snapshot)) and not run.final_eval:
                screen.line(
                    f"note: its evaluation was of the weights after step {checkpoint.step}, and run.final_eval=false "
                    f"makes no other: it is kept in {run_dir / 'orphans'}"
                )
            screen.line(f"resumed {run.dir} after step {checkpoint.step} of {run.max_steps}")
            if is_trained(run, checkpoint.step, trained_cpu_s(run_dir)):
                todo = ", and its end weights are evaluated" if run.final_eval else ""
                screen.line(f"nothing is left to train{todo}; run.max_steps={checkpoint.step + 50} would add 50 steps")
            session, progress = session_of(built, checkpoint, watch), Progress.restored(checkpoint)
            del built, checkpoint
        with noting_stop(run_dir, world, progress, run.max_steps):
            result = run_loop(run_session(session, progress))
        del session  # frees memory for the models of baselines
        return finish(result, progress.step)


def evaluate(config: Config, command: Command) -> VerbResult:
    """Run `agentgrpo eval`: compare a checkpoint with a baseline (default: the weights its run started from). An engine
    with foreign weights, such as openai, is compared with the start model."""
    with _run_directory(config, command) as (settings, command, world, screen, _):
        arguments, run_dir = command.arguments, Path(settings.run.dir)
        is_trained = settings.engine.says("trainable") is not False
        _refuse_weights(arguments, None if is_trained else settings.engine.name)
        once(world, lambda: _begin(settings.run, command))
        screen.line(f"run directory: {settings.run.dir}")
        start = arguments["baseline"] or _start_of(arguments["ckpt"], screen)
        once(world, lambda: _say_what(run_dir, ckpt=arguments["ckpt"], baseline=start))
        weights = [Path(path) if path else None for path in (start, arguments["ckpt"])]
        before = settings if is_trained else replace(settings, engine=PartNode("engine", {"name": "hf"}))
        inputs = load_inputs(settings, command.snapshot, screen, world)
        # A warm start takes minutes, and is not needed if both policies have weights.
        made = isinstance(settings.model, WarmStart) and weights[0] is not None and weights[1] is not None
        first = Start(cast(Path, weights[0])) if made else prepare_start(inputs)

        def examiner(settings: Settings, weights: Path | None) -> Examiner:
            return build_run(replace(inputs, settings=settings), first, weights=weights).examiner(test=True, dev=False)

        baseline, trained = (partial(examiner, *given) for given in zip((before, settings), weights, strict=True))
        once(world, lambda: set_result_aside(run_dir))
        if not settings.suite and len(inputs.dataset.split("test")) == 1:
            with noting_stop(run_dir, world):
                shown = run_loop(show_one(trained, screen, world, grace_s=settings.run.grace_s))
            [reward] = shown.rewards
            code = Verdict.INCONCLUSIVE.exit_code if arguments["gate"] else 0
            return VerbResult(exit_code=code, objective=None if reward is None else reward.total)
        with noting_stop(run_dir, world):
            result = run_loop(examine_only(baseline, trained, screen, world, grace_s=settings.run.grace_s))
        screen.line(f"results: {run_dir / 'eval.json'}")
        code = Verdict(result["verdict"]).exit_code if arguments["gate"] else 0
        return VerbResult(exit_code=code, objective=result["sampled"]["trained"]["reward"])


def export(config: Mapping[str, Any], command: Command) -> VerbResult:
    """Run `agentgrpo export`: a checkpoint as a model folder that needs neither peft nor us, or a preference set."""
    given: dict[str, str | None] = dict(command.arguments)
    if given["preferences"] is not None:
        _export_preferences(given, given["preferences"])
        return VerbResult()
    if given["ckpt"] is None or given["merge"] is None:
        raise ConfigError(
            "export needs both: --ckpt RUN/checkpoints/step-000150 --merge OUT; or --preferences OUT --run RUN "
            "--feedback FILE"
        )
    transformers.logging.disable_progress_bar()
    export_model(Path(given["ckpt"]), Path(given["merge"]))
    print(f"agentgrpo: {given['merge']} holds the model of {given['ckpt']}", file=sys.stderr)
    return VerbResult()


def _export_preferences(given: Mapping[str, str | None], out: str) -> None:
    if given["run"] is None or given["feedback"] is None or given["ckpt"] or given["merge"]:
        raise ConfigError("export --preferences OUT needs --run RUN and --feedback FILE, and nothing else")
    found = write_preferences(RunDir(Path(given["run"])), Path(given["feedback"]), Path(out))
    print(f"agentgrpo: {found.line(Path(out))}", file=sys.stderr)


def _begin(run: RunSettings, command: Command) -> None:
    """Write the configuration of a new run into its directory. Raises ConfigError if that already holds a run."""
    run_dir = Path(run.dir)
    if CheckpointStore(run_dir=run_dir).candidates() or (run_dir / "metrics.jsonl").exists():
        way = f", or {way_on(yaml.safe_load(command.snapshot), run)}" if can_go_on(run) else ""
        raise ConfigError(f"run.dir={run.dir} already holds a run; choose another directory{way}")
    if command.verb != "eval" and (run_dir / EVAL).exists():  # its files would be taken for the run's
        raise ConfigError(f"run.dir={run.dir} already holds an evaluation; choose another directory")
    write_atomic(run_dir / SNAPSHOT, command.snapshot.encode())


def _refuse_weights(arguments: Mapping[str, Any], foreign: str | None) -> None:
    """Raise ConfigError if an evaluation has no weights, or weights that cannot be read. foreign: the engine, if it
    samples from weights that are not ours."""
    if foreign is None and arguments["ckpt"] is None:
        raise ConfigError("eval needs a checkpoint: --ckpt RUN/checkpoints/step-000150")
    if foreign is not None and arguments["ckpt"] is not None:
        raise ConfigError(
            f"--ckpt with engine={foreign}, which samples from no checkpoint; leave it out, or hold the engine against "
            "one: --baseline RUN/checkpoints/step-000150"
        )
    for name in ("ckpt", "baseline"):
        path = arguments[name]
        if path is not None:
            require_model(Path(path), f"--{name} {path}")


def _say_what(run_dir: Path, **folders: str | None) -> None:
    """Record the folders of the evaluated weights beside the evaluation."""
    found = {name: str(Path(folder).absolute()) if folder else None for name, folder in folders.items()}
    write_atomic(run_dir / EVALUATED, (json.dumps(found, indent=2) + "\n").encode())


def _start_of(checkpoint: str | None, screen: Screen) -> str | None:
    """Return the folder of the weights that the checkpoint's run started from, or None if they have changed."""
    start = None if checkpoint is None else saved_start(Path(checkpoint))
    if start is None:
        return None
    if Start(Path(start["folder"])).state() == start:
        return str(start["folder"])
    screen.line(
        f"note: {start['folder']} no longer holds the weights this run started from; the baseline is what the settings "
        "start from today. Give --baseline PATH to compare with others"
    )
    return None


def _new_session(
    settings: Settings, command: Command, world: ProcessGroup, screen: Screen, watch: Watch
) -> tuple[TrainingSession, Progress]:
    """Build the session of a run at its first step."""
    built = run_of(settings, command.snapshot, screen, world)
    return session_of(built, None, watch), Progress()


def _baselines(settings: Settings, command: Command, world: ProcessGroup) -> Baselines | None:
    """Return the baselines that the run asks for, or None. Raises ConfigError."""
    if not settings.run.eval.baselines:
        return None
    return Baselines(settings, command.snapshot, world, partial(read_preset, configs_dir()))


def _finish(
    run: RunSettings,
    baselines: Baselines | None,
    world: ProcessGroup,
    screen: Screen,
    watch: Watch,
    result: dict[str, Any] | None,
    step: int,
) -> VerbResult:
    """Finish a run after its last step, `step`: train baselines, print the tables and the next commands. result:
    eval.json's content."""
    if result is not None:
        if baselines is not None:
            result = baselines.train(step, screen=screen, watch=watch)
        report_result(screen, result, once(world, lambda: RunDir(Path(run.dir)).metrics()))
    screen.close()
    for what, command in next_commands(run, step).items() if run.screen != "quiet" else ():
        screen.line(f"{what}: {command}")
    return VerbResult(objective=result["sampled"]["trained"]["reward"] if result else None)


@contextmanager
def _all_processes(config: Config) -> Iterator[ProcessGroup]:
    """Yield the processes of the launch. An error in all of them is printed by the first."""
    hardware: Hardware = build_node("hardware", config["hardware"])
    launch = Launch.of()
    try:
        with processes(launch, device=hardware.device, timeout_s=hardware.process_timeout_s) as world:
            yield world
    except ProcessError as e:  # a collective with a lost process may never return: exit without it
        code = report(e)
        sys.stdout.flush()
        os._exit(code)
    except AgentGrpoError as e:
        if launch.rank:
            raise ProcessExit(e.exit_code) from e
        raise


@contextmanager
def _run_directory(config: Config, command: Command) -> Iterator[tuple[Settings, Command, ProcessGroup, Screen, Watch]]:
    """Yield the first process's settings and command, which name the run directory, the processes of the launch, the
    screen and the diagnostics. The first process holds the directory's lock. Library warnings become lines of the
    screen."""
    with _all_processes(config) as world:
        config, command = world.gather((config, command))[0]
        settings = settings_of(config)
        with _locked(settings.run, world, command) as (screen, watch):
            yield settings, command, world, screen, watch


@contextmanager
def _locked(run: RunSettings, world: ProcessGroup, command: Command) -> Iterator[tuple[Screen, Watch]]:
    logging.captureWarnings(True)
    logging.disable(logging.WARNING if world.rank else logging.NOTSET)
    transformers.logging.disable_progress_bar()
    clean = only_first(world, lambda: RestoreOnRefusal(Path(run.dir), is_ours=command.is_fresh))
    lock = agree(world, lambda: only_first(world, lambda: _lock(run)))
    world.keep_stacks(Path(run.dir))
    limits = {"watchdog_s": run.watchdog_s, "max_loop_lag_s": run.max_loop_lag_s}
    with (
        lock,
        clean,
        only_first(world, lambda: Screen(mode=run.screen)) as screen,
        Diagnostics(Path(run.dir), **limits, say=screen.line) as watch,
    ):
        yield screen, watch


def _lock(run: RunSettings) -> RunLock:
    try:
        Path(run.dir).mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"run.dir={run.dir}: {e.strerror}; give a directory, or a place where one can be made") from e
    return RunLock(Path(run.dir))
