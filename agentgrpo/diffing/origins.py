"""Where two runs come from: versions and machine, start weights, data."""

from __future__ import annotations

from typing import Any

from agentgrpo.diffing.settings import apart
from agentgrpo.records.run_dir import RunDir


def origins(a: RunDir, b: RunDir) -> dict[str, Any]:
    """ "environment": versions, machine and determinism that differ. "start" and "fingerprints": of the start weights,
    the data and the tools, with "same" (null where one of the runs has no checkpoint that says so)."""
    states = [run.checkpoint_state() for run in (a, b)]
    starts = [state.get("start", {}).get("sha256") for state in states]
    names = sorted({name for state in states for name in state.get("fingerprints", {})})
    fingerprints = {name: [state.get("fingerprints", {}).get(name) for state in states] for name in names}
    return {
        "environment": apart(a.environment, b.environment),
        "start": _sides(starts, known=all(starts)),
        "fingerprints": {name: _sides(values, known=all(states)) for name, values in fingerprints.items()},
    }


def _sides(values: list[Any], *, known: bool) -> dict[str, Any]:
    return {"a": values[0], "b": values[1], "same": values[0] == values[1] if known else None}
