"""The page's facts about a run besides its episodes: settings, curves, the final comparison."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.records.run_dir import CONFIG, RunDir, stop_sentence

T = TypeVar("T")
_COMPOSED = re.compile(r"^# composed from (.*)$", re.MULTILINE)
_QUALITY, _COST = "correctness", "cost/episode"
"""Metrics for which the environment's figures use other names."""
_CHECKPOINT = "time/checkpoint"


def facts_of(run: RunDir, name: str, *, has_tokens: bool, ratio_of: str | None) -> dict[str, Any]:
    """The run's entry in the block `overview`. Unreadable parts are left out and listed in `damage`. ratio_of: the
    weights that scored its tokens, or None."""
    damage: list[str] = []

    def read(get: Callable[[], T], without: T) -> T:
        try:
            return get()
        except (DataError, OSError) as e:
            damage.append(" ".join(str(e).split()))
            return without

    nothing: Mapping[str, Any] = {}
    no_rows: list[dict[str, Any]] = []
    config, text = read(lambda: config_of(run), (nothing, ""))
    metrics, evaluation = read(run.metrics, no_rows), read(lambda: run.evaluation, None)
    chosen, settings = _choices(text), mapping(config, "run")
    steps_done = metrics[-1]["step"] + 1 if metrics else 0
    max_steps = settings.get("max_steps") if steps_done or evaluation is None else None
    curves, environment = columns(metrics), read(lambda: run.environment, nothing)
    return {
        "name": name,
        "path": str(run.path),
        **{group: _named(group, config, chosen) for group in ("task", "model", "reward", "algorithm")},
        "agent": _named("environment", config, chosen),
        "max_steps": max_steps,
        "steps_done": steps_done,
        "finished": evaluation is not None or (settings.get("final_eval") is False and steps_done == max_steps),
        "stopped": read(lambda: stop_sentence(run.stopped) if run.stopped is not None else None, None),
        "verdict": evaluation.get("verdict") if evaluation else None,
        "config": text,
        "environment": environment,
        "metrics": curves,
        "timings": columns(_within(read(run.timings, no_rows), steps_done)),
        "profile": columns(read(run.profile, no_rows)),
        "evaluation": evaluation,
        "labels": _labels(evaluation or {}, environment, curves["tags"]),
        "has_tokens": has_tokens,
        "has_ratio": ratio_of is not None,
        "ratio_of": ratio_of,
        "damage": damage,
    }


def config_of(run: RunDir) -> tuple[Mapping[str, Any], str]:
    """The configuration and its text; ({}, "") if the file is missing. Raises DataError and OSError."""
    path = run.path / CONFIG
    return (run.config, path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else ({}, "")


def mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The mapping at `key`, or {} if the value is not a mapping."""
    found = config.get(key)
    return found if isinstance(found, Mapping) else {}


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """{"step": [...], "tags": {tag: [value at each step, or None]}}; rows of the same step are merged."""
    by_step: dict[int, dict[str, Any]] = {}
    for row in rows:
        by_step.setdefault(row["step"], {}).update(row)
    steps = sorted(by_step)
    tags = sorted({tag for row in by_step.values() for tag in row} - {"step"})
    return {"step": steps, "tags": {tag: [by_step[step].get(tag) for step in steps] for tag in tags}}


def _within(clocks: Sequence[Mapping[str, Any]], steps_done: int) -> Sequence[Mapping[str, Any]]:
    """A checkpoint's time is recorded at the following step. The last checkpoint has no following step, so its time is
    added to the last step."""
    last = steps_done - 1
    if not steps_done or all(row["step"] <= last for row in clocks):
        return clocks
    checkpoint = sum(row.get(_CHECKPOINT) or 0.0 for row in clocks if row["step"] >= last)
    return [*(row for row in clocks if row["step"] <= last), {"step": last, _CHECKPOINT: checkpoint}]


def names_of(runs: Sequence[RunDir]) -> list[str]:
    """The folders' names, with as many parent folders as needed to make them unique. Raises ConfigError if a run is
    given twice."""
    paths = [run.path.resolve() for run in runs]
    for i, path in enumerate(paths):
        if path in paths[:i]:
            raise ConfigError(f"{runs[i].path} is given twice; give each run once")
    longest = max(len(path.parts) for path in paths)
    for length in range(1, longest + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names


def _choices(text: str) -> dict[str, str]:
    """The presets named in config.yaml's header, by group."""
    found = _COMPOSED.search(text)
    words = found[1].split() if found else []
    return {group: preset for group, _, preset in (word.partition("=") for word in words)}


def _named(group: str, config: Mapping[str, Any], chosen: Mapping[str, str]) -> str | None:
    own = mapping(config, group)
    name = chosen.get(group) or own.get("name")
    named = own.get("path") if group == "model" and name == "path" else name
    return None if named is None else str(named)


def _labels(evaluation: Mapping[str, Any], environment: Mapping[str, Any], tags: Mapping[str, Any]) -> dict[str, str]:
    """Metric -> name, for the figures by which runs in this environment are compared."""
    figures = evaluation.get("figures") or environment.get("figures")
    if not isinstance(figures, Mapping):
        return {}
    short = figures["by_kind"]
    metric = {figures["quality"]: _QUALITY, "cost": _COST}
    names = {metric.get(name, f"agent/{name}"): short.get(name, name.replace("_", " ")) for name in figures["headline"]}
    return {tag: label for tag, label in names.items() if tag in tags}
