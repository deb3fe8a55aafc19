"""Records of a step: its groups, its tags, its clocks and its profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from agentgrpo.core.stages import Stage
from agentgrpo.grpo.samples import Credit
from agentgrpo.records.seals import seal
from agentgrpo.records.trajectories import write_trajectories
from agentgrpo.rollout.metrics import rollout_clocks, rollout_metrics, start_tags, suite_metrics
from agentgrpo.rollout.scoring import Drop
from agentgrpo.run.parts import Parts, Progress
from agentgrpo.run.rollouts import Rollout
from agentgrpo.training.process_group import once


def record_groups(
    parts: Parts,
    step: int,
    rollout: Rollout,
    advantages: Sequence[Sequence[Credit]],
    reasons: Sequence[Drop | None],
    dropped: Sequence[Drop | None],
) -> dict[str, float]:
    """Write every group of the rollout to the step's file, dropped or not; returns the rollout's tags. reasons: reasons
    not to train on a group. dropped: the reasons that were applied."""

    run_dir = Path(parts.run.dir)
    path = run_dir / "trajectories" / f"train-{step:06d}.jsonl"

    def write() -> None:
        write_trajectories(
            path,
            scored=rollout.scored,
            advantages=advantages,
            dropped=dropped,
            step=step,
            seed=parts.run.seed,
            environment=parts.runner.environment.name,
            record_tokens=parts.run.record_tokens,
        )
        seal(run_dir, path)

    with parts.clock.stage(Stage.RECORDS):
        once(parts.world, write)
        figures = parts.runner.figures
        cost_of = partial(figures.cost_of, prices=figures.priced(parts.run.eval.prices))
        tags = rollout_metrics(rollout.scored, reasons, cost_of)
        if figures.members:
            tags = suite_metrics(tags, rollout.scored, reasons, cost_of)
        tags = {**tags, **rollout.tags}
        return tags | start_tags(rollout.scored, reasons) if step == 0 else tags


def record_seconds(parts: Parts, step: int, rollout: Rollout, tags: Mapping[str, float], *, update_s: float) -> None:
    """Record the clocks of the step with these tags, and show one of its episodes on the screen."""
    with parts.clock.stage(Stage.RECORDS):
        clocks = rollout_clocks(rollout.scored)
        seconds = dict(rollout.seconds) | {"time/train": update_s, "time/tools": clocks["time_tools"]}
        seconds |= {f"time/episode/{name}": value for name, value in clocks.items()}
        if "time/generation" in seconds:  # something was sampled
            generation_s = max(seconds["time/generation"], 1e-9)
            seconds["throughput/sampled_tokens_per_s"] = tags.get("tokens/sampled", 0.0) / generation_s
        note_seconds(parts, step, {**seconds, **parts.watch.lap()})
        parts.show(rollout.scored)


def record_step(parts: Parts, progress: Progress, tags: dict[str, float], lines: Sequence[str]) -> None:
    """Record the step. It counts as done, and the state for the next step takes effect, once its tags are in the
    metrics. lines: printed with it."""
    step = progress.step
    with parts.clock.stage(Stage.RECORDS):
        parts.metrics.step(step, tags)
        progress.close_step(tags)
        parts.trackers.log(tags, step=step)
        for line in lines:
            parts.screen.line(line)
    profile = _note_profile(parts, step)
    with parts.clock.stage(Stage.RECORDS):
        parts.screen.metrics(step, tags | profile)
        parts.screen.advance()


def note_seconds(parts: Parts, step: int, seconds: Mapping[str, float]) -> None:
    parts.metrics.clock(step, seconds)
    parts.trackers.log(seconds, step=step)


def _note_profile(parts: Parts, step: int) -> dict[str, float]:
    """Write down the time of each stage since the previous row, and return it as tags: evaluation and checkpoint before
    the step are part of its row, work after the last step is in no row."""
    seconds = parts.clock.lap()
    tags = {f"time/profile/{name}": value for name, value in seconds.items()}
    if seconds:
        parts.metrics.profile(step, seconds)
        parts.trackers.log(tags, step=step)
    return tags
