"""Verdicts that were paid for."""

from __future__ import annotations

import json
from pathlib import Path

from agentgrpo.judges.llm.verdict import Opinion
from agentgrpo.metering.paid import PaidCache


class VerdictCache(PaidCache[Opinion]):
    table, columns, what = "verdicts", ("scores", "reason"), "the judge's verdicts"

    def __init__(self, path: Path, *, setting: str = "judge.cache") -> None:
        super().__init__(path, setting=setting)

    def _row(self, value: Opinion) -> tuple[str, ...]:
        return json.dumps(value.scores), value.reason

    def _value(self, row: tuple[str, ...]) -> Opinion:
        return Opinion(tuple(json.loads(row[0])), row[1])
