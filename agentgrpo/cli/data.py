"""`agentgrpo data`: question-answer files, looked at before a run. It loads no model and no library of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgrpo.core.commands import Command, VerbResult
from agentgrpo.core.errors import ConfigError, did_you_mean
from agentgrpo.tasks.questions.checking import check
from agentgrpo.tasks.questions.formats import FORMATS


def data(config: Mapping[str, Any], command: Command) -> VerbResult:
    """`agentgrpo data check FILE...`: exit code 0 if nothing was found that would hurt, else 1."""
    given = command.arguments
    what, format = given["what"], given["format"] or "auto"
    if what != "check":
        raise ConfigError(f"data {what}; there is agentgrpo data check FILE....{did_you_mean(what, ['check'])}")
    if format not in ("auto", *FORMATS):
        raise ConfigError(f"--format {format}; auto, {', '.join(FORMATS)} are allowed.{did_you_mean(format, FORMATS)}")
    report = check(given["files"], format=format, subset=given["subset"])
    print(report.json() if given["json"] else "\n".join(report.lines()))
    return VerbResult(exit_code=int(report.hurts))
