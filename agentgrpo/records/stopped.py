"""stopped.json: why a run ended before its end, until it goes on.

    {"step": 12, "max_steps": 40, "reason": "the budget is spent: budget.per_run.calls.web=100, ...",
     "raised": "budget.per_run.calls.web=200"}

step: done in all; step and max_steps are null of an evaluation. raised: what to add to the command line that goes on
with it; "" where that needs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentgrpo.durable import write_atomic
from agentgrpo.errors import AgentGrpoError, BudgetSpent

STOPPED = "stopped.json"
_ADVICE = "; go on with: "
"""What follows it in a message is how to go on at the time."""


def write_stop(run_dir: Path, error: Exception, *, step: int | None, max_steps: int | None) -> None:
    """Raises StorageError."""
    found = {
        "step": step,
        "max_steps": max_steps,
        "reason": _reason(error),
        "raised": error.raised if isinstance(error, BudgetSpent) else "",
    }
    write_atomic(run_dir / STOPPED, (json.dumps(found, indent=2) + "\n").encode())


def forget_stop(run_dir: Path) -> None:
    with suppress(FileNotFoundError):
        (run_dir / STOPPED).unlink()


def stop_sentence(stopped: Mapping[str, Any]) -> str:
    """For people."""
    step, of = stopped.get("step"), stopped.get("max_steps")
    if not (isinstance(step, int) and isinstance(of, int)):
        where = ""
    elif step == 0:
        where = " before its first step"
    else:
        where = f" after step {step} of {of}" if step < of else f" after its last step, {step}"
    return f"stopped{where}: {stopped.get('reason')}"


def _reason(error: Exception) -> str:
    """Without what the run itself has added to it: that it stops, and how to go on."""
    origin = error.__cause__ if type(error.__cause__) is type(error) else error
    text = " ".join(str(origin).partition(_ADVICE)[0].split()).removeprefix("stopped by ")
    return text if isinstance(error, AgentGrpoError) else f"{type(error).__name__}: {text}"
