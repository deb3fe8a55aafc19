"""`agentgrpo plan`: what a run would take of memory, time, calls, money and disk, from its configuration alone, and
where it takes too much, which settings would help, and by how much.

Nothing is loaded, downloaded or written: the model is a shape, and the data is counted only where it lies on this
machine. Only where hardware says nothing of its speed, and the device is here, it is measured for a moment.

    parts.py    configuration --> model without weights, engine, work of a step
    calls.py    configuration --> calls that an episode makes at most
    estimate.py all of these --> Plan
    knobs.py    a Plan that does not fit --> other settings, each planned
    report.py   Plan --> lines
"""

from __future__ import annotations

import json
from typing import Any

from agentgrpo.config.hardware import Launch
from agentgrpo.config.suite import members_of
from agentgrpo.core.commands import Command, VerbResult
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.untrusted import printable
from agentgrpo.preflight.plan.estimate import estimate
from agentgrpo.preflight.plan.knobs import helpful
from agentgrpo.preflight.plan.parts import data_notes
from agentgrpo.preflight.plan.report import lines

__all__ = ["plan"]


def plan(config: dict[str, Any], command: Command) -> VerbResult:
    """Print it; exit code 1 where the run does not fit into the memory of its device. What else may be too much, such
    as a disk, is said: it may be of another machine than this one, and a run that finds too little ends in order. Each
    member of a suite is planned with its share of a step. Raises ConfigError where the model's shape cannot be known.
    """
    launch, given = Launch.of(), command.arguments["processes"]
    if launch.rank:
        return VerbResult()
    processes = _count(given) if given else launch.size if launch.size > 1 else None
    members = members_of(config)
    found = {name: estimate(own, processes=processes) for name, own in (members or {"": config}).items()}
    written: dict[str, Any] = {}
    for name, made in found.items():
        own = members.get(name, config)
        advice, notes = helpful(own, made), data_notes(own)
        written[name] = {**made.to_json(), "knobs": [knob.to_json() for knob in advice], "notes": notes}
        if not command.arguments["json"]:
            head = [f"suite.{name}, with its share of a step:"] if name else []
            print(printable("\n".join([*head, *lines(made, advice), *(f"note: {note}" for note in notes)])))
    if command.arguments["json"]:
        print(json.dumps({"suite": written} if members else written[""], indent=2))
    return VerbResult(exit_code=0 if all(made.fits for made in found.values()) else 1)


def _count(given: str) -> int:
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(f"--processes {given}; a number of 1 or more is allowed: that of the devices that train")
    return int(given)
