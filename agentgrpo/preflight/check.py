"""`agentgrpo check WHAT`: `numerics` compares the trainer with a scalar reference; `judge` tests whether the judge can
be trusted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agentgrpo.config.build import build_node
from agentgrpo.config.hardware import Hardware
from agentgrpo.config.suite import members_of
from agentgrpo.core.commands import Command, VerbResult
from agentgrpo.core.errors import ConfigError, did_you_mean
from agentgrpo.core.untrusted import printable
from agentgrpo.judges.base import AnswerJudge
from agentgrpo.preflight.numerics import check_numerics
from agentgrpo.run.judging import JudgeReport, check_judge
from agentgrpo.run.labels import Label, read_labels
from agentgrpo.tasks.base import TaskDataset


def check(config: Mapping[str, Any], command: Command) -> VerbResult:
    """`agentgrpo check WHAT`: exit code 0 if nothing is wrong, else 1."""
    what, labels = command.arguments["what"], command.arguments["labels"]
    checks: dict[str, Callable[..., VerbResult]] = {
        "numerics": _check_numerics,
        "judge": partial(_check_judge, labels=labels),
    }
    if what not in checks:
        raise ConfigError(
            f"check {what}; allowed are agentgrpo check {' and agentgrpo check '.join(checks)}."
            + did_you_mean(what, checks)
        )
    if labels is not None and what != "judge":
        raise ConfigError(
            f"check {what} --labels {labels}: labels are for a judge: agentgrpo check judge --labels FILE"
        )
    return checks[what](config, as_json=command.arguments["json"])


def _check_numerics(config: Mapping[str, Any], *, as_json: bool) -> VerbResult:
    hardware: Hardware = build_node("hardware", config["hardware"])
    algorithm = config["algorithm"]
    own = [f"algorithm.{key}={algorithm[key]}" for key in ("loss", "advantage") if ":" in algorithm[key]]
    numerics = check_numerics(hardware.device, own)
    print(numerics.json() if as_json else "\n".join(numerics.lines()))
    return VerbResult(exit_code=1 if numerics.unequal else 0)


def _check_judge(config: Mapping[str, Any], *, as_json: bool, labels: str | None) -> VerbResult:
    labelled = read_labels(Path(labels)) if labels is not None else []
    members: Mapping[str, Mapping[str, Any]] = members_of(config)
    if members and labels is not None:
        raise ConfigError(f"--labels {labels} with a suite: each member has its own judge; check one member")
    reports = {name: _report(own, labelled) for name, own in (members or {"": config}).items()}
    if as_json:
        rows = {name: report.json() for name, report in reports.items()}
        print(json.dumps({"suite": {name: json.loads(row) for name, row in rows.items()}}) if members else rows[""])
    for name, report in reports.items() if not as_json else ():
        print(printable("\n".join([*([f"suite.{name}:"] if name else []), *report.text()])))
    return VerbResult(exit_code=1 if any(report.findings for report in reports.values()) else 0)


def _report(config: Mapping[str, Any], labels: Sequence[Label]) -> JudgeReport:
    judge: AnswerJudge = build_node("judge", config["judge"])
    dataset: TaskDataset = build_node("task", config["task"])
    return asyncio.run(check_judge(judge, dataset.split("test"), labels=labels))
