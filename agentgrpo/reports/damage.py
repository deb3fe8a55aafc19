"""Warnings about damaged files of a run, printed before its contents."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from agentgrpo.core.untrusted import printable
from agentgrpo.records.run_dir import RunDir

_SHOWN = 5


def warn_of_damage(runs: Iterable[RunDir]) -> None:
    """Print a line on stderr for each damaged file, up to _SHOWN per run."""
    for run in runs:
        found = run.problems()
        for problem in found[:_SHOWN]:
            print(f"agentgrpo: warning: {printable(problem)}", file=sys.stderr)
        if len(found) > _SHOWN:
            print(
                f"agentgrpo: warning: {printable(str(run.path))}: {len(found) - _SHOWN} more files are damaged",
                file=sys.stderr,
            )
