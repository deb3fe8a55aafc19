"""The meter of a run: the layers before its services, with its cassette, its budget and their counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from agentgrpo.services.budget import Budget, money, units
from agentgrpo.services.cassette import CassetteSettings
from agentgrpo.services.layers import layered
from agentgrpo.services.ledger import Ledger
from agentgrpo.services.service import Answer, Request

T = TypeVar("T")


class Meter:
    """The Service of one configuration. `counts`, of this process: money, seconds and calls/<kind> that were spent,
    replayed answers, transient failures that are not on the cassette (unrecorded), and attempts that a full server
    refused (refused)."""

    def __init__(self, *, cassette: CassetteSettings, budget: Budget, run_dir: Path) -> None:
        """Open the cassette and the ledger. Raises ConfigError if there is nothing to replay."""
        self.budget, self.replays_only = budget, cassette.mode == "strict"
        self.has_cassette = cassette.mode != "live"
        self.in_use = False
        """Whether any part uses this meter; equal on all processes of a run."""
        self.counts: dict[str, float] = defaultdict(float)
        self._cassette, self._ledger = cassette.open(), Ledger(run_dir, budget)
        self._service = layered(
            budget=budget,
            ledger=self._ledger,
            cassette=self._cassette,
            replays_only=self.replays_only,
            counts=self.counts,
        )

    async def ask(self, request: Request[T]) -> Answer[T]:
        """Pass the request through the layers. Raises RetrieverError (over_budget) past a limit of the episode,
        BudgetSpent past a limit of the step or run, CassetteMiss, and any error of `request.live`."""
        return await self._service.ask(request)

    def begin(self) -> None:
        """Begin the ledger (Ledger.begin). Only one process of a run does this, before any call."""
        if self.in_use:
            self._ledger.begin()

    def summary(self) -> Mapping[str, Any]:
        """Return the spending of all processes of the run so far as JSON: money, seconds, and calls by kind. Empty for
        a meter that is not in use."""
        if not self.in_use:
            return {}
        spent = self._ledger.totals()
        return {
            "money": money(sum(units(s.money) for s in spent.values())),
            "seconds": sum(s.seconds for s in spent.values()),
            "calls": {kind: s.calls for kind, s in spent.items()},
            "replayed": self.counts["replayed"],
        }

    def bill(self) -> Mapping[str, float]:
        """Return `counts` with money in whole units, not billionths; empty for a meter that is not in use."""
        if not self.in_use:
            return {}
        return {**self.counts, "money": money(round(self.counts["money"]))}

    async def close(self) -> None:
        """Close the files; a later call opens them again."""
        self._ledger.close()
        if self._cassette is not None:
            self._cassette.close()
