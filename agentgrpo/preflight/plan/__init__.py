"""`agentgrpo plan`: estimates a run's memory, time, calls, money and disk from its configuration alone. If a limit is
exceeded, it names the settings that would help, and how much each would save.

Nothing is loaded, downloaded or written: the model is only a shape, and the data is counted only if it is on this
machine. If the configuration gives no device speed and the device is here, the speed is measured briefly.

    parts.py    configuration --> model without weights, engine, work of a step
    calls.py    configuration --> maximum number of calls of an episode
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
    """Print the plan; exit code 1 if the run does not fit into the memory of its device. Other shortages, such as disk
    space, are only reported: the run may use another machine, and a run that meets such a limit ends in order. Each
    member of a suite is planned with its share of a step. Raises ConfigError if the model's shape is unknown.
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
        raise ConfigError(f"--processes {given}; allowed is the number of training devices, 1 or more")
    return int(given)
