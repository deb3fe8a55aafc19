"""Whether a run may go on from a checkpoint: compares all keys that determine results. It loads no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any

from agentgrpo.core.errors import CheckpointError
from agentgrpo.records.card import flatten

SOFT = (
    "run.dir",
    "run.screen",
    "run.log_with",
    "run.keep_last",
    "run.keep_best",
    "run.checkpoint_every",
    "run.step_timeout_s",
    "run.watchdog_s",
    "run.max_loop_lag_s",
    "run.max_steps",
    "run.max_cpu_s",
    "run.eval.baselines",
    "run.final_eval",
    "run.eval_every",
    "run.eval_tasks",
    "run.grace_s",
    "run.max_error_fraction",
    "run.max_consecutive_skipped_steps",
    "run.max_rollbacks",
    "run.record_tokens",
    "hardware.strategy",
    "hardware.process_timeout_s",
    "run.profile",
)
"""Keys that may change between stop and resume: they decide how a run is watched and kept, not what it computes.
(max_steps lengthens the learning-rate schedule, so a note reports the change.)"""
SOFT_GROUPS = ("guards.", "cassette.", "budget.per_step.", "budget.per_run.", "reward.feedback.")
"""Prefixes of further keys that may change: a run that a guard or limit has ended goes on with other limits, and people
give more feedback on episodes after they have seen them. Limits of an episode are not among them, as the policy
notices them, nor are prices, which policies are compared by."""


def _is_newer(key: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether `key` belongs to a settings group newer than the saved run, and switches that group off."""
    if key in before:
        return False
    is_none = key in ("counterfactual.name", "demonstrations.name") and now[key] == "none"
    is_none |= key == "suite" and not now[key]
    return is_none or (key.startswith("budget.prices.") and not now[key])


def refuse_drift(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Compare two `fixed_state`s: {"config": nested, "fingerprints": {name: hash}, "files"?: {name: hash}, "versions":
    {name: version}}.

    Raises CheckpointError (exit 4) if a key that determines results differs. Returns one line for each allowed
    difference: versions and thread counts may change the last bits, soft keys do not change results.
    """
    notes = refuse_other_settings(saved["config"], current["config"])
    data, now_data = saved["fingerprints"], current["fingerprints"]
    before, now = saved.get("files", {}), current.get("files", {})
    others = [name for name in sorted(now) if name in before and before[name] != now[name]]
    changed = [name for name in sorted(now_data) if data.get(name) != now_data[name]]
    which = f" ({', '.join(others)})" if others else ""
    _refuse([f"the {name} changed{which if name == 'data' else ''}" for name in changed])
    versions, now_versions = saved["versions"], current["versions"]
    notes += [
        f"{name} was {versions.get(name)}, is now {now_versions[name]}: the last bits may differ"
        for name in sorted(now_versions)
        if versions.get(name) != now_versions[name]
    ]
    return notes


def files_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the files that the run's tasks read, each as "task.KEY=PATH" -> a hash of its bytes."""
    named = {
        f"{key}={value}": Path(value).expanduser()
        for key, value in flatten(config).items()
        if ".task." in f".{key}" and isinstance(value, str)
    }
    return {name: _digest(path) for name, path in named.items() if path.is_file()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, lambda: blake2b(digest_size=16)).hexdigest()


def refuse_other_settings(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Compare two configurations: the part of `refuse_drift` that needs nothing built. Raises CheckpointError."""
    before, now = flatten(saved), flatten(current)
    hard: list[str] = []
    notes: list[str] = []
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key) and not _is_newer(key, before, now):
            line = f"{key} was {before.get(key)!r}, is now {now.get(key)!r}"
            (notes if key in SOFT or f"{key}.".startswith(SOFT_GROUPS) else hard).append(line)
    _refuse(hard)
    return notes


def _refuse(changes: Sequence[str]) -> None:
    if changes:
        raise CheckpointError(
            f"this run cannot go on with other settings: {'; '.join(changes[:3])}{' …' if len(changes) > 3 else ''}. "
            "Resume without these overrides, or start a new run with them"
        )
