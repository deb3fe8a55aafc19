"""Answers of a reader that were paid for."""

from __future__ import annotations

from agentgrpo.metering.paid import PaidCache


class AnswerCache(PaidCache[str]):
    table, columns, what = "answers", ("answer",), "the reader's answers"

    def _row(self, value: str) -> tuple[str, ...]:
        return (value,)

    def _value(self, row: tuple[str, ...]) -> str:
        return row[0]
