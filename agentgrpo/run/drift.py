"""May this run go on from that checkpoint? Compares what determines the results, key by key. It loads no model."""

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
"""Keys that may change between stop and resume: they decide how a run is watched and kept, not what it computes
(max_steps lengthens the learning-rate schedule, so a run that was extended is told so)."""
SOFT_GROUPS = ("guards.", "cassette.", "budget.per_step.", "budget.per_run.", "reward.feedback.")
"""Keys that begin like this, too: a run that a guard or a limit has ended goes on once it is told otherwise, and people
say more of episodes when they have seen them. Not those
of an episode, which the policy meets, nor prices, which policies are compared by."""


def _is_newer(key: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether the run is older than a group of settings, and the key says that there is none of it."""
    if key in before:
        return False
    is_none = key in ("counterfactual.name", "demonstrations.name") and now[key] == "none"
    is_none |= key == "suite" and not now[key]
    return is_none or (key.startswith("budget.prices.") and not now[key])


def refuse_drift(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Compare two `fixed_state`s: {"config": nested, "fingerprints": {name: hash}, "files"?: {name: hash}, "versions":
    {name: version}}.

    Raises CheckpointError (exit 4) when a key that determines results differs. Returns a line for every difference that
    is allowed: versions and thread counts may change the last bits, soft keys change nothing that was computed.
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
    """The files of a run's tasks, each as "task.KEY=PATH" -> a hash of its bytes."""
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
    """The part of `refuse_drift` that needs nothing to be built: of two configurations."""
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
