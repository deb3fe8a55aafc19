"""`agentgrpo doctor`: looks for what would spoil a run, before it costs anything.

    config --plan, build_run--> Case --CHECKS--> [Result]

It trains nothing and writes nothing into the run's directory; the start weights are made where they are not kept yet,
for the run itself would. It samples a few groups of the first step with the run's own agent, engine and reward, and
looks at the tokens, the log-probs and the rewards of these.

    finding.py  what a check says                 case.py       what is examined, and what was built of it
    examination.py  the checks, in order          report.py     what people see
    parts.py    built, and what of it is broken  episodes.py   groups of the first step; recording.py saw them sampled
    writing.py, turns.py, masks.py, numbers.py    templates, stop tokens, masks, log-probs
    services.py, sandbox.py                       whether tools, retrievers and judge answer
    signal.py, prices.py, leaks.py, room.py, schedule.py   rewards, costs, data, room and settings
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from signal import SIGTERM
from signal import signal as handled_by  # `signal` is a module of this package
from typing import Any

import transformers

from agentgrpo.config.hardware import Launch
from agentgrpo.core.commands import Command, VerbResult
from agentgrpo.preflight.doctor.case import Case
from agentgrpo.preflight.doctor.examination import examine
from agentgrpo.preflight.doctor.report import Report

__all__ = ["doctor"]


def doctor(config: Mapping[str, Any], command: Command) -> VerbResult:
    """Exit code 0 where nothing would spoil the run, else 1. It is for one process: the others of a launch do
    nothing."""
    if Launch.of().rank:
        return VerbResult()
    logging.captureWarnings(True)
    transformers.logging.disable_progress_bar()
    as_json, report = command.arguments["json"], Report()
    results = []
    with (
        _terminable(),
        tempfile.TemporaryDirectory(prefix="agentgrpo-doctor-") as folder,
        closing(examine(Case(config=config, snapshot=command.snapshot, folder=Path(folder)))) as found,
    ):
        for result in found:
            results.append(result)
            if not as_json:
                report.show(result)
    healthy = all(result.status != "problem" for result in results)
    if as_json:
        print(json.dumps({"healthy": healthy, "checks": [r.to_json() for r in results]}, indent=2, default=str))
    else:
        report.verdict(results)
    return VerbResult(exit_code=0 if healthy else 1)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does, with nothing left behind."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = handled_by(SIGTERM, end)
    try:
        yield
    finally:
        handled_by(SIGTERM, before)
