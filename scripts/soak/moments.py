"""Kill a process with SIGKILL at a chosen moment, and note its phase."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentgrpo.core.durable import Operation, injected
from agentgrpo.run.context import RunContext

_STEP = re.compile(r" (of|before) step \d+$")


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A time after `seconds`, or at the durable operation of number `operation` (in the middle of a write if `torn`);
    with neither, never."""

    seconds: float | None = None
    operation: int | None = None
    torn: bool = False


@contextmanager
def dying_at(moment: Moment, notes: Path) -> Iterator[None]:
    """Runs in the process itself: it dies at the operation of `moment`. For every phase of the run, `notes` gets a line
    with the number of operations before it and its name."""
    count, is_dying, at = 0, False, RunContext.at

    def note(phase: str) -> None:
        with notes.open("ab", buffering=0) as file:  # one write, which a kill cannot tear
            file.write(f"{count} {phase}\n".encode())

    def hook(operation: Operation) -> int | None:
        nonlocal count, is_dying
        count += 1
        if count == moment.operation and moment.torn and operation.kind == "write" and operation.size > 1:
            is_dying = True
            return operation.size // 2
        if is_dying or count == moment.operation:
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    def noting(self: RunContext, phase: str) -> None:
        note(_STEP.sub("", phase))
        at(self, phase)

    note("the start")
    RunContext.at = noting  # type: ignore[method-assign]
    with injected(hook):
        yield
    note("the end")
