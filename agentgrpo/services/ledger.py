"""The ledger: the spending of a run, in the run directory, shared by the run's processes.

A call is counted before it is made, in one transaction with the check of the limits. So concurrent calls cannot exceed
a limit together, and a kill forgets no call. A counted call is never removed: a failed call may be billed all the same,
and a repeated step is paid for again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentgrpo.services.budget import Budget, SpendingLimits, money, number
from agentgrpo.services.paid import SharedFile

FILE = "spending.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS spent (
    scope TEXT, kind TEXT, calls INTEGER NOT NULL, money INTEGER NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (scope, kind)
)"""
_RUN = "run"
_ADD = """
INSERT INTO spent VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
calls = calls + excluded.calls, money = money + excluded.money, seconds = seconds + excluded.seconds"""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A call, or a later correction of its cost and duration."""

    step: int | None
    kind: str
    money: int
    """Money in billionths."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Spent:
    calls: int = 0
    money: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """The limit that refused a call, which was not counted."""

    key: str
    """The limit's key: budget.per_run.money."""
    limit: float
    text: str


class Ledger(SharedFile):
    def __init__(self, run_dir: Path, budget: Budget) -> None:
        super().__init__(
            run_dir / FILE,
            what="what the run has spent",
            schema=_SCHEMA,
            advice="repair it and go on with `agentgrpo resume`; without the file all spending begins at 0",
        )
        self._budget = budget

    def begin(self) -> None:
        """Start or resume the run: spending per step is reset, since a step that was begun before is done again."""
        with self.opened() as connection:
            connection.execute("DELETE FROM spent WHERE scope <> ?", (_RUN,))

    def reserve(self, calls: Sequence[LedgerEntry]) -> list[Refusal | None]:
        """Count each call that exceeds no limit, in order; returns None or a Refusal for each. Call it in a thread."""
        with self.transaction() as connection:
            scopes: dict[str, dict[str, tuple[int, int, float]]] = {}

            def spent_in(scope: str) -> dict[str, tuple[int, int, float]]:
                if scope not in scopes:
                    rows = connection.execute("SELECT kind, calls, money, seconds FROM spent WHERE scope = ?", (scope,))
                    scopes[scope] = {kind: (calls, money, seconds) for kind, calls, money, seconds in rows}
                return scopes[scope]

            refusals: list[Refusal | None] = []
            for call in calls:
                limits = [("per_run", _RUN, self._budget.per_run)]
                if call.step is not None:
                    limits.append(("per_step", f"step {call.step}", self._budget.per_step))
                found = [r for name, scope, limit in limits if (r := _refusal(name, limit, spent_in(scope), call))]
                refusals.append(found[0] if found else None)
                for _, scope, _ in limits if not found else ():
                    connection.execute(_ADD, (scope, call.kind, 1, call.money, 0.0))
                    before = spent_in(scope).get(call.kind, (0, 0, 0.0))
                    spent_in(scope)[call.kind] = (before[0] + 1, before[1] + call.money, before[2])
        return refusals

    def settle(self, entries: Sequence[LedgerEntry]) -> None:
        """Record durations, and costs beyond the reservations (negative if lower). Call it in a thread."""
        rows = [
            (scope, entry.kind, 0, entry.money, entry.seconds)
            for entry in entries
            for scope in (_RUN, *([] if entry.step is None else [f"step {entry.step}"]))
        ]
        with self.transaction() as connection:
            connection.executemany(_ADD, rows)

    def totals(self) -> dict[str, Spent]:
        """Return the spending of the whole run by kind. Call it in a thread."""
        with self.opened() as connection:
            sought = "SELECT kind, calls, money, seconds FROM spent WHERE scope = ? ORDER BY kind"
            rows = connection.execute(sought, (_RUN,)).fetchall()
        return {kind: Spent(calls, money(paid), seconds) for kind, calls, paid, seconds in rows}


def _refusal(
    scope: str, limits: SpendingLimits, spent: dict[str, tuple[int, int, float]], call: LedgerEntry
) -> Refusal | None:
    calls = spent.get(call.kind, (0, 0, 0.0))[0]
    paid, seconds = sum(row[1] for row in spent.values()), sum(row[2] for row in spent.values())
    passed = limits.passed_by(call.kind, call.money, calls=calls, money_spent=paid, seconds=seconds)
    if passed is None:
        return None
    key, limit = passed
    of = f"{calls} calls of {call.kind}" if key.startswith("calls") else number(money(paid))
    of = f"{seconds:.1f} s" if key == "seconds" else of
    costs = f", and one more {call.kind} may cost {number(money(call.money))}" if key == "money" else ""
    return Refusal(f"budget.{scope}.{key}", limit, f"{of} of {number(limit)} are spent{costs}")
