"""A run on one screen: its curves, evaluation, time use and failures, and commands to continue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentgrpo.config.admission import needed_overrides
from agentgrpo.config.build import user_code
from agentgrpo.core.commands import shell_line
from agentgrpo.core.errors import DataError, line_of
from agentgrpo.records.curves import ENDS, curve_lines, curves_of
from agentgrpo.records.lines import FAILED, HEADING, TextLine, counted, one_line
from agentgrpo.records.run_dir import RunDir, stop_sentence
from agentgrpo.records.screen import LEARNING, OUTCOME, Screen, clock
from agentgrpo.records.trajectories import read_trajectories
from agentgrpo.reports.recorded import figures_of
from agentgrpo.run.report import closing_lines, report_mode, report_shares

CURVES_BESIDE = ("dev/reward", "policy/kl")
"""Tags of LEARNING that are shown beside the outcome and the environment's figures."""
COST = "cost/episode"
_CLOCKS: Mapping[str, str] = {
    "time/generation": "rollout",
    "time/reward": "reward",
    "time/train": "update",
    "time/checkpoint": "checkpoint",
}
"""Tags of timings.jsonl -> stage; the stages follow one another."""
_WASTED = ("skipped", "guard/fired")


def overview(screen: Screen, run: RunDir) -> None:
    """Print the overview. Raises DataError for files that cannot be read."""
    rows, result = run.metrics(), run.evaluation
    for line in _head(run, rows, result):
        screen.text(line.text, style=line.style)
    if curves := curves_of(rows, _curve_names(run)):
        first, last = rows[0]["step"], rows[-1]["step"]
        screen.text(
            f"\nsteps {first} to {last}; numbers: mean of the first {ENDS} and of the last {ENDS}", style=HEADING
        )
        screen.text("\n".join(curve_lines(curves, width=screen.width, has_unicode=screen.has_unicode)))
    if result is not None:
        _evaluation(screen, run, rows, result)
    _time(screen, run)
    screen.text("")
    for line in [*_failures(rows, result), _checkpoints(run)]:
        screen.text(line.text, style=line.style)
    screen.text("\nhow to go on", style=HEADING)
    for what, command in _ways_on(run, rows, result):
        screen.text(what, indent=2)
        screen.text(command, indent=4)


def _evaluation(screen: Screen, run: RunDir, rows: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> None:
    screen.text("")
    try:
        if "figures" in result:  # older versions recorded no figures
            report_mode(screen, result, "greedy")
            report_shares(screen, result)
        for line in closing_lines(result, rows):
            screen.line(line)
    except (KeyError, TypeError) as e:
        raise DataError(f"{run.path / 'eval.json'}: {line_of(e)}; evaluate again: agentgrpo eval") from e


def _head(run: RunDir, rows: list[dict[str, Any]], result: Mapping[str, Any] | None) -> Iterator[TextLine]:
    yield TextLine(str(run.path), HEADING)
    chosen = [
        f"{group} {_name(run.config, group)}"
        for group in ("task", "environment", "model", "engine")
        if _name(run.config, group)
    ]
    seed = _setting(run.config, "seed")
    if chosen:
        yield TextLine(", ".join([*chosen, *([] if seed is None else [f"seed {seed}"])]))
    done, of = (rows[-1]["step"] + 1 if rows else 0), _setting(run.config, "max_steps")
    state = f"{done:,} of {of:,} steps" if isinstance(of, int) else counted(done, "step")
    verdict = f"; verdict: {result.get('verdict')}" if result is not None else "; not evaluated yet"
    yield TextLine(f"trained: {state}{verdict}")
    if run.stopped is not None:
        yield TextLine(one_line(stop_sentence(run.stopped)), FAILED)


def _name(config: Mapping[str, Any], group: str) -> str:
    node = config.get(group)
    return one_line(str(node.get("name", ""))) if isinstance(node, Mapping) else ""


def _setting(config: Mapping[str, Any], key: str, group: str = "run") -> Any:
    node = config.get(group)
    return node.get(key) if isinstance(node, Mapping) else None


def _curve_names(run: RunDir) -> dict[str, str]:
    """Tag -> name: the outcome, the environment's figures, the dev score; for imitation learning the loss."""
    if _name(run.config, "demonstrations") not in ("", "none"):
        return {"loss": "loss", **{tag: LEARNING[tag] for tag in CURVES_BESIDE}}
    figures = figures_of(run)
    own = {f"agent/{name}": figures.label(name) for name in figures.headline if name != "cost"}
    return {**OUTCOME, **own, COST: "cost", **{tag: LEARNING[tag] for tag in CURVES_BESIDE}}


def _time(screen: Screen, run: RunDir) -> None:
    """Print the time by stage, if any was recorded."""
    profile, timings = run.profile(), run.timings()
    spent: Counter[str] = Counter()
    if profile:
        for row in profile:
            spent.update({name: s for name, s in row.items() if name not in ("step", "total") and s is not None})
    else:
        for row in timings:
            spent.update({name: s for tag, name in _CLOCKS.items() if (s := row.get(tag)) is not None})
    total = sum(spent.values())
    if not total:
        return
    overlap = ", rollout beside the update" if _setting(run.config, "max_staleness", "algorithm") else ""
    screen.text("")
    screen.table(
        f"where the time of its steps went: {clock(total)}{overlap}",
        ["", "time", "share"],
        [[name, clock(s), f"{s / total:.0%}"] for name, s in spent.most_common() if s >= 0.005 * total],
    )


def _failures(rows: list[dict[str, Any]], result: Mapping[str, Any] | None) -> Iterator[TextLine]:
    """Failures in training by kind, and failures in the evaluation."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update({t.removeprefix("failures/"): int(n) for t, n in row.items() if t.startswith("failures/") and n})
    episodes = int(sum(row.get("episodes/total") or 0 for row in rows))
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in counts.most_common()) or "none"
    yield TextLine(f"failed episodes of training: {kinds} (of {episodes:,})", FAILED if counts else "")
    for tag, what in zip(_WASTED, ("steps without an update", "steps at which a guard fired"), strict=True):
        if number := sum(bool(row.get(tag)) for row in rows):
            yield TextLine(f"{what}: {number}", FAILED)
    if result is not None:
        failed = {mode: sum(result.get(mode, {}).get("failures", {}).values()) for mode in ("greedy", "sampled")}
        if any(failed.values()):
            told = ", ".join(f"{mode} {number}" for mode, number in failed.items())
            yield TextLine(f"failed tasks of the evaluation: {told}", FAILED)


def _checkpoints(run: RunDir) -> TextLine:
    steps = [*run.checkpoints()]
    if not steps:
        return TextLine("checkpoints: none")
    where = f"after step {steps[0]}" if len(steps) == 1 else f"after steps {_several(steps)}"
    return TextLine(f"checkpoints: {len(steps)}, {where}")


def _several(steps: list[int]) -> str:
    return ", ".join(map(str, steps)) if len(steps) <= 6 else f"{steps[0]}, {steps[1]}, ..., {steps[-1]}"


def _ways_on(run: RunDir, rows: list[dict[str, Any]], result: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    where = str(run.path)
    yield "look at it in a browser", shell_line("view", where)
    if run.trajectory_files():
        yield "list episodes; --step N: those of a step", shell_line("show", where, "--list")
        if (id := _first_episode(run)) is not None:
            yield "read one", shell_line("show", where, "--episode", id)
    of = _setting(run.config, "max_steps")
    done = rows[-1]["step"] + 1 if rows else 0
    if isinstance(of, int) and (run.checkpoints() or not rows):
        if done < of or result is None:
            raised = (run.stopped or {}).get("raised")
            more = [str(raised)] if raised else []
            why = "go on with it, unless it is under way"
        else:
            why, more = "train 50 steps more", [f"run.max_steps={of + 50}"]
        needed = needed_overrides(run.config, user_code(run.config), run.path)
        yield why, " ".join([shell_line("resume", where, *more), *needed])


def _first_episode(run: RunDir) -> str | None:
    """Id of the first episode in the file that `show` opens by default; None if it cannot be read yet."""
    try:
        records: Iterable[Any] = read_trajectories(run.trajectory_file().path)
        return next((str(record.id) for record in records), None)
    except DataError:
        return None
