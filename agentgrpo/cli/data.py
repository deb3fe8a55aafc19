"""`agentgrpo data`: checks question-answer files before a run. It loads neither a model nor a model library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgrpo.core.commands import Command, VerbResult
from agentgrpo.core.errors import ConfigError, did_you_mean
from agentgrpo.core.untrusted import printable
from agentgrpo.tasks.questions.checking import check
from agentgrpo.tasks.questions.formats import FORMATS


def data(config: Mapping[str, Any], command: Command) -> VerbResult:
    """`agentgrpo data check FILE...`: exit code 0 if no problem was found, else 1."""
    given = command.arguments
    what, format = given["what"], given["format"] or "auto"
    if what != "check":
        raise ConfigError(f"data {what}; there is agentgrpo data check FILE....{did_you_mean(what, ['check'])}")
    if format not in ("auto", *FORMATS):
        raise ConfigError(f"--format {format}; auto, {', '.join(FORMATS)} are allowed.{did_you_mean(format, FORMATS)}")
    report = check(
        given["files"],
        format=format,
        subset=given["subset"],
        keys={key: name for key in ("id", "question", "answers") if (name := given[f"{key}_key"])},
        corpus=given["corpus"],
        corpus_keys=_keys(given["corpus_keys"]),
    )
    print(report.json() if given["json"] else printable("\n".join(report.lines())))
    return VerbResult(exit_code=int(report.hurts))


def _keys(text: str | None) -> dict[str, str]:
    """Parse id=_id,text=body."""
    pairs = [pair.partition("=") for pair in text.split(",")] if text else []
    if unfit := ["".join(pair) for pair in pairs if not (pair[0] and pair[2])]:
        raise ConfigError(f"--corpus-keys {unfit[0]}; NAME=KEY is needed, as in --corpus-keys id=_id,text=body")
    return {name: key for name, _, key in pairs}
