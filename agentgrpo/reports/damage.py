"""Word of files of a run that are damaged, before anything is shown of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from agentgrpo.core.untrusted import printable
from agentgrpo.records.run_dir import RunDir

_SHOWN = 5


def warn_of_damage(runs: Iterable[RunDir]) -> None:
    """A line on stderr for each file, up to a few of a run."""
    for run in runs:
        found = run.problems()
        for problem in found[:_SHOWN]:
            print(f"agentgrpo: warning: {printable(problem)}", file=sys.stderr)
        if len(found) > _SHOWN:
            print(
                f"agentgrpo: warning: {printable(str(run.path))}: {len(found) - _SHOWN} more files are damaged",
                file=sys.stderr,
            )
