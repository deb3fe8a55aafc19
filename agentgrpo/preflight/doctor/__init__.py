"""`agentgrpo doctor`: finds the problems of a run before the run costs anything.

    config --plan, build_run--> Case --CHECKS--> [Result]

The doctor trains nothing and writes nothing into the run's directory. If the start weights do not exist yet, it makes
them, as the run itself would. It samples a few groups of the first step with the run's own agent, engine and reward,
and checks their tokens, log-probs and rewards.

    finding.py  the result of a check             case.py       the configuration and the parts built from it
    examination.py  the checks, in order          report.py     the output for people
    parts.py    builds, and finds broken parts    episodes.py   groups of the first step; recording.py records them
    writing.py, turns.py, masks.py, numbers.py    templates, stop tokens, masks, log-probs
    services.py, sandbox.py                       whether tools, retrievers and judge answer
    signal.py, evidence.py, prices.py, leaks.py, capacity.py, schedule.py   rewards, costs, data, memory and settings
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
    """Exit code 0 if no problem is found, else 1. Each member of a suite is examined as its own run. Only the launch's
    first process works; the others return at once."""
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
    """report: shows each result as it comes; None shows nothing."""
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
    """Turn SIGTERM into an exception, so that everything is cleaned up as after Ctrl-C."""

    def end(number: int, frame: object) -> None:
        raise ProcessExit(128 + number)

    before = handled_by(SIGTERM, end)
    try:
        yield
    finally:
        handled_by(SIGTERM, before)
