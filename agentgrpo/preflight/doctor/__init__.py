"""`agentgrpo doctor`: finds problems of a run before it costs anything.

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
from agentgrpo.config.suite import members_of
from agentgrpo.core.commands import Command, VerbResult
from agentgrpo.core.errors import ProcessExit
from agentgrpo.preflight.doctor.case import Case
from agentgrpo.preflight.doctor.examination import examine
from agentgrpo.preflight.doctor.finding import Result
from agentgrpo.preflight.doctor.report import Report

__all__ = ["doctor"]


def doctor(config: Mapping[str, Any], command: Command) -> VerbResult:
    """Exit code 0 where no problem is found, else 1. Each member of a suite is looked at as a run of its own. It is for
    one process: the others of a launch do nothing."""
    if Launch.of().rank:
        return VerbResult()
    logging.captureWarnings(True)
    transformers.logging.disable_progress_bar()
    members: Mapping[str, Mapping[str, Any]] = members_of(config)
    as_json, found = command.arguments["json"], dict[str, list[Result]]()
    with _terminable():
        for name, own in (members or {"": config}).items():
            if name and not as_json:
                print(f"suite.{name}, with its share of a step:")
            found[name] = _examined(own, command, None if as_json else Report())
    healthy = all(result.status != "problem" for results in found.values() for result in results)
    if as_json:
        checks = {name: [r.to_json() for r in results] for name, results in found.items()}
        told = {"suite": checks} if members else {"checks": checks[""]}
        print(json.dumps({"healthy": healthy, **told}, indent=2, default=str))
    return VerbResult(exit_code=0 if healthy else 1)


def _examined(config: Mapping[str, Any], command: Command, report: Report | None) -> list[Result]:
    """report: what shows the results as they come."""
    results = []
    with (
        tempfile.TemporaryDirectory(prefix="agentgrpo-doctor-") as folder,
        closing(examine(Case(config=config, snapshot=command.snapshot, folder=Path(folder)))) as found,
    ):
        for result in found:
            results.append(result)
            if report is not None:
                report.show(result)
    if report is not None:
        report.verdict(results)
    return results


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does, with nothing left behind."""

    def end(number: int, frame: object) -> None:
        raise ProcessExit(128 + number)

    before = handled_by(SIGTERM, end)
    try:
        yield
    finally:
        handled_by(SIGTERM, before)
