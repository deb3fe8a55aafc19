"""A whole run, start to verdict: evaluate the initial policy, train, evaluate the final one."""

from __future__ import annotations

import gc
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgrpo.core.durable import write_atomic
from agentgrpo.core.errors import BudgetSpent, DataError, EnvironmentFailure, NoServer, RetrieverError, TooManyFailures
from agentgrpo.core.types import ScoredGroup
from agentgrpo.engines.probe import determinism_probe
from agentgrpo.records.metrics import PROFILE, read_metrics
from agentgrpo.records.screen import Screen
from agentgrpo.records.seals import seal_again
from agentgrpo.retrieval.base import Probed
from agentgrpo.run.checkpoints import save
from agentgrpo.run.context import RunContext
from agentgrpo.run.evaluate import Scorecard
from agentgrpo.run.examine import Examiner
from agentgrpo.run.judging import probe_judge
from agentgrpo.run.parts import Parts, Progress
from agentgrpo.run.profile import report_profile
from agentgrpo.run.report import report, report_episode
from agentgrpo.run.train import train
from agentgrpo.services.meter import Meter
from agentgrpo.training.canary import is_pooled, refuse_stale_weights
from agentgrpo.training.process_group import ProcessGroup, once

UNPROMISED = "not promised"
"""`determinism` for an engine on servers."""


@dataclass(frozen=True, kw_only=True)
class TrainingSession:
    parts: Parts
    examiner: Examiner
    eval_key: str
    """Hash of everything that the evaluation of the initial policy depends on: data, weights, sampling and seed."""
    go_on: str
    """How to continue the run, or to start it again (resume.way_on)."""


async def run_session(session: TrainingSession, progress: Progress) -> dict[str, Any] | None:
    """Run from `progress` to the verdict; returns eval.json's content (None with run.final_eval=false).

    The initial policy is evaluated before the first step and its scorecards are kept, so that a resumed run compares
    with the same figures. Raises Preempted after a signal; `agentgrpo resume` then continues from that stage.
    """
    parts, examiner, engine = session.parts, session.examiner, session.parts.engine
    go_on, grace_s, result = session.go_on, parts.run.grace_s, None
    try:
        with RunContext(parts.world, go_on, grace_s=grace_s, at_once=parts.screen.close) as ctx:
            if parts.meter is not None:
                once(parts.world, parts.meter.begin)
            for note in await ctx.do("the judge's probe", probe_judge(examiner.judge)):
                parts.screen.line(f"note: {note}")
            await ctx.do("the probe of services", probe_services(examiner, parts.world))
            first = "the first sync and probe"
            await ctx.do(first, engine.load_weights(progress.step))
            if is_pooled(engine):
                policy, step = parts.trainer.policy, progress.step - 1
                await ctx.do(first, refuse_stale_weights(engine, policy, parts.canary_ids, step))
            _describe(parts, (await ctx.do(first, determinism_probe(engine, [parts.canary_ids]))).level)
            if parts.run.checkpoint_every and progress.saved_step is None:
                save(parts, progress, ctx)
            initial = await _initial_scorecards(session, progress, ctx) if parts.run.final_eval else None
            await train(parts, progress, ctx)
            if initial is not None:
                phase = "the evaluation of the end weights"
                end_key = f"{session.eval_key} after {progress.step} steps"
                final = await ctx.do(phase, examiner.keep_scorecards("end", end_key, step=progress.step))
                result = (await ctx.do(phase, examiner.compare(initial, final))).to_json()
    except BudgetSpent as e:
        raise BudgetSpent(f"{e}; the run stops at its last whole step; {go_on} {e.raised}", e.raised) from e
    except NoServer as e:
        raise NoServer(f"{e}; the run stops at its last whole step; {go_on}") from e
    finally:
        await examiner.close()
        parts.trackers.close()
    _note_unrecorded(parts.screen, parts.meter)
    report_profile(parts.screen, read_metrics(Path(parts.run.dir) / PROFILE) if parts.run.profile else ())
    return result


async def probe_services(examiner: Examiner, world: ProcessGroup) -> None:
    """Probe the agent's services before use. Raises ConfigError or TooManyFailures if one does not answer."""
    for part in examiner.equipment if world.rank == 0 else ():
        if isinstance(part, Probed):
            try:
                await part.probe()
            except RetrieverError as e:
                raise TooManyFailures(f"a retriever does not answer: {e}") from e
            except EnvironmentFailure as e:
                raise TooManyFailures(str(e)) from e


def _note_unrecorded(screen: Screen, *meters: Meter | None) -> None:
    if count := sum(int(meter.bill().get("unrecorded", 0)) for meter in meters if meter is not None):
        screen.line(
            f"note: {count} calls failed in passing and are not on the cassette; a strict replay may miss them: run "
            "once more with cassette.mode=fill before"
        )


async def _initial_scorecards(session: TrainingSession, progress: Progress, ctx: RunContext) -> dict[str, Scorecard]:
    """Return the initial policy's scorecards, made before the first step; a resumed run reads them again."""
    parts, examiner, phase = session.parts, session.examiner, "the evaluation of the start weights"
    ctx.at(phase)
    advice = "add run.final_eval=false, and compare with: agentgrpo eval --ckpt CHECKPOINT --baseline START"
    try:
        kept = once(parts.world, lambda: examiner.kept_scorecards("start", session.eval_key))
    except DataError as e:
        if progress.step > 0:
            raise DataError(f"{e}; it holds the figures of the start weights: {advice}") from e
        kept = None  # nothing is trained yet, so they can be made again
    if kept is None and progress.step > 0:
        raise DataError(
            f"{parts.run.dir}/eval-start.json, the figures of the start weights, is missing or of other tasks; {advice}"
        )
    if kept is None:
        return await ctx.do(phase, examiner.keep_scorecards("start", session.eval_key))
    return kept


def _describe(parts: Parts, probed: str) -> None:
    """Print whether results depend on scheduling, and write environment.json. Servers batch requests as they arrive, so
    a probe that finds no difference proves nothing about them."""
    served = is_pooled(parts.engine)
    determinism = UNPROMISED if served else probed
    parts.screen.line(f"determinism: {determinism}" + (f", servers sample (as probed: {probed})" if served else ""))
    found = {
        "determinism": determinism,
        "probed": probed,
        "versions": parts.fixed_state["versions"],
        "machine": platform.platform(),
        "environment": parts.runner.environment.name,
        "figures": parts.runner.figures.to_json(),
    }
    text = (json.dumps(found, indent=2) + "\n").encode()
    run_dir = Path(parts.run.dir)

    def write() -> None:
        write_atomic(run_dir / "environment.json", text)
        seal_again(run_dir, run_dir / "environment.json")

    once(parts.world, write)


async def examine_only(
    baseline: Callable[[], Examiner],
    trained: Callable[[], Examiner],
    screen: Screen,
    world: ProcessGroup,
    *,
    grace_s: float,
) -> dict[str, Any]:
    """Run `agentgrpo eval`: both policies on the same tasks and seeds, one after the other, so that only one is in
    memory; returns eval.json's content. They share everything but policy and engine."""
    go_on, phase = "nothing was trained; start the evaluation again", "the evaluation"
    held: Examiner | None = None
    try:
        with RunContext(world, go_on, grace_s=grace_s, at_once=screen.close) as ctx:
            held = baseline()
            await ctx.do(phase, probe_services(held, world))
            await ctx.do(phase, held.begin())
            before = await ctx.do(phase, held.scorecards("start"))
            await held.engine.close()
            await held.runner.environment.close()  # each policy has its own, which may have started processes
            held = None
            gc.collect()  # a model's modules form reference cycles
            held = trained()
            await ctx.do(phase, held.begin())
            after = await ctx.do(phase, held.scorecards("end"))
            result = (await ctx.do(phase, held.compare(before, after))).to_json()
    except BudgetSpent as e:
        raise BudgetSpent(
            f"{e}; the evaluation ends without a verdict; evaluate again with {e.raised}", e.raised
        ) from e
    finally:
        if held is not None:
            await held.close()
    _note_unrecorded(screen, held.meter)
    report(screen, result)
    return result


async def show_one(
    trained: Callable[[], Examiner], screen: Screen, world: ProcessGroup, *, grace_s: float
) -> ScoredGroup:
    """Run `agentgrpo eval` over a single question, without a comparison: print its greedy episode in full."""
    phase = "the evaluation"
    held: Examiner | None = None
    try:
        with RunContext(world, "start the evaluation again", grace_s=grace_s, at_once=screen.close) as ctx:
            held = trained()
            await ctx.do(phase, probe_services(held, world))
            await ctx.do(phase, held.begin())
            [scored] = await ctx.do(phase, held.one())
    finally:
        if held is not None:
            await held.close()
    report_episode(screen, scored)
    return scored
