"""The meter: every call to a service outside goes through it.

    ask -> the episode's limits -> the same under way? -> on the cassette? -> limits of step and run -> live -> record

What arrives in one tick of the event loop is looked up, counted and recorded together, in one thread, so that a server
that answers batches still gets them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from agentgrpo.core.concurrency import Batcher, Limiter, PerLoop
from agentgrpo.core.errors import BudgetSpent, EpisodeError, RetrieverError
from agentgrpo.services.asking import current_account, current_step
from agentgrpo.services.budget import ASKED_BY_POLICY, OVER_BUDGET, Budget, money, number, units
from agentgrpo.services.cassette import Cassette, CassetteSettings, RecordedReply, ServiceRequest
from agentgrpo.services.ledger import Ledger, LedgerEntry, Refusal
from agentgrpo.services.paid import Shared

T = TypeVar("T")
_AT_ONCE = 256
"""Calls that are looked up, counted or recorded together at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(Generic[T]):
    """How the answers of one kind of service are written down, and what they cost."""

    write: Callable[[T], Any]
    """As JSON."""
    read: Callable[[Any], T]
    error: type[EpisodeError]
    facts: frozenset[str] = frozenset()
    """Kinds of failure that are facts of the world (see cassette)."""
    unbilled: frozenset[str] = frozenset()
    """Kinds of failure that cost no more than the price of the call: what was set aside beside it is given back."""
    cost: Callable[[T], float] | None = None
    """What an answer has cost beside the price of the call, where that is known only afterwards."""


@dataclass(frozen=True, slots=True)
class Metered(Generic[T]):
    value: T
    paid: bool
    """False: replayed."""


@dataclass(frozen=True, slots=True)
class _Asked:
    request: ServiceRequest
    step: int | None
    money: int
    """To be reserved, in billionths."""
    attempt: int


@dataclass(frozen=True, slots=True)
class _Done:
    entry: LedgerEntry
    recorded: RecordedReply | None
    number: int
    """No two are alike."""


class Meter:
    """Of one configuration. `counts`: money, seconds and calls/<kind> that were spent, replayed answers, and failures
    that passed and so are not on the cassette (unrecorded), by this process."""

    def __init__(self, *, cassette: CassetteSettings, budget: Budget, run_dir: Path) -> None:
        """Raises ConfigError where there is nothing to replay."""
        self.budget, self.replays_only = budget, cassette.mode == "strict"
        self.has_cassette = cassette.mode != "live"
        self.in_use = False
        """Whether any part is behind it: alike on all processes of a run."""
        self.counts: dict[str, float] = defaultdict(float)
        self._cassette: Cassette | None = cassette.open()
        self._ledger = Ledger(run_dir, budget)
        self._prices = {kind: units(price) for kind, price in budget.prices.by_kind.items()}
        self._number = 0
        self._underway: PerLoop[dict[ServiceRequest, Shared[Any]]] = PerLoop(dict)
        self._calls: PerLoop[dict[asyncio.Task[Any], int]] = PerLoop(dict)  # live ones, and what is set aside for them
        thread = Limiter(1)
        self._looked_up: Batcher[None, _Asked, RecordedReply | Refusal | None] = Batcher(
            self._look_up, max_batch=_AT_ONCE, limiter=thread
        )
        self._noted: Batcher[None, _Done, RecordedReply | None] = Batcher(
            self._note, max_batch=_AT_ONCE, limiter=thread
        )

    def begin(self) -> None:
        """Once for all processes of a run, before any call: see Ledger.begin."""
        if self.in_use:
            self._ledger.begin()

    def summary(self) -> Mapping[str, Any]:
        """What the run has spent so far, in all its processes: money, seconds and calls by kind, for JSON; empty for a
        meter that is not in use."""
        if not self.in_use:
            return {}
        spent = self._ledger.totals()
        return {
            "money": money(sum(units(s.money) for s in spent.values())),
            "seconds": sum(s.seconds for s in spent.values()),
            "calls": {kind: s.calls for kind, s in spent.items()},
            "replayed": self.counts["replayed"],
        }

    async def close(self) -> None:
        """The next call would open the files again."""
        self._ledger.close()
        if self._cassette is not None:
            self._cassette.close()

    async def ask(
        self,
        kind: str,
        body: Mapping[str, Any],
        live: Callable[[], Awaitable[T]],
        form: Form[T],
        *,
        estimate: float = 0.0,
        has_effects: bool = False,
    ) -> Metered[T]:
        """The answer to the request `body`, from the cassette or from `live`. Equal requests that are under way are
        asked once, but for those that have effects, where there is no cassette. estimate: the most that form.cost may
        come to.

        Raises RetrieverError (over_budget) past a limit of the episode, BudgetSpent past one of the step or run,
        CassetteMiss, and what `live` raises."""
        account = current_account() if kind in ASKED_BY_POLICY else None
        if account is not None:
            self._charge(kind)
        underway, request = self._underway.get(), ServiceRequest.of(kind, body)
        is_own = has_effects and not self.has_cassette
        shared = None if is_own else underway.get(request)
        if shared is None or shared.is_over:
            shared = Shared(self._answer(request, live, form, units(estimate)))
            if not is_own:
                underway[request] = shared
        try:
            value, paid = await shared.wait()
        finally:
            if underway.get(request) is shared and shared.is_over:
                del underway[request]
        return Metered(value, paid)

    def _charge(self, kind: str) -> None:
        account, price = current_account(), self._prices[kind]
        assert account is not None
        passed = self.budget.per_episode.passed_by(kind, price, calls=account.calls[kind], money_spent=account.money)
        if passed is not None:
            raise RetrieverError(f"budget.per_episode.{passed[0]}={number(passed[1])} is spent", kind=OVER_BUDGET)
        account.calls[kind] += 1
        account.money += price

    async def _answer(
        self, request: ServiceRequest, live: Callable[[], Awaitable[T]], form: Form[T], estimate: int
    ) -> tuple[T, bool]:
        """The answer, and whether it was paid for."""
        recorded = await self._admit(request, estimate)
        if recorded is not None:
            self.counts["replayed"] += 1
            return _read(recorded, form), False
        task = asyncio.current_task()
        assert task is not None
        self._calls.get()[task] = estimate
        try:
            return await self._live(request, live, form, estimate)
        finally:
            del self._calls.get()[task]

    async def _admit(self, request: ServiceRequest, estimate: int) -> RecordedReply | None:
        """What is on the cassette; None where the call is counted and may be made."""
        price = self._prices[request.kind] + estimate
        while True:
            self._number += 1
            found = await self._looked_up.ask(None, _Asked(request, current_step(), price, self._number))
            if not isinstance(found, Refusal):
                break
            await self._refuse(found)
        if found is None:
            self.counts[f"calls/{request.kind}"] += 1
            self.counts["money"] += price
        return found

    async def _refuse(self, refusal: Refusal) -> None:
        """Returns where calls under way may come to less than was set aside for them. Else raises BudgetSpent, when
        they have ended: what is paid for is recorded."""
        calls = dict(self._calls.get())
        if refusal.key.endswith("money") and (estimated := [task for task, estimate in calls.items() if estimate]):
            await asyncio.wait(estimated, return_when=asyncio.FIRST_COMPLETED)
            return
        if calls:
            await asyncio.wait(calls)
        raise BudgetSpent(
            f"the budget is spent: {refusal.key}={number(refusal.limit)}, {refusal.text}",
            raised=f"{refusal.key}={number(2 * refusal.limit or 1)}",
        )

    async def _live(
        self, request: ServiceRequest, live: Callable[[], Awaitable[T]], form: Form[T], estimate: int
    ) -> tuple[T, bool]:
        began = time.monotonic()
        try:
            value = await live()
        except EpisodeError as e:
            passing = e.kind not in form.facts
            self.counts["unrecorded"] += passing and self._cassette is not None
            outcome = None if passing else {"failure": [e.kind, str(e)]}
            difference = -estimate if e.kind in form.unbilled else 0
            kept = await self._settle(request, outcome, time.monotonic() - began, difference)
            if kept is not None:
                return _read(kept, form), True
            raise
        seconds = time.monotonic() - began
        cost = units(form.cost(value)) if form.cost is not None else 0
        reply = {"reply": form.write(value)} if self._cassette is not None else None
        kept = await self._settle(request, reply, seconds, cost - estimate)
        return (value if kept is None else _read(kept, form)), True

    async def _settle(
        self, request: ServiceRequest, outcome: Mapping[str, Any] | None, seconds: float, difference: int
    ) -> RecordedReply | None:
        """Note down what a call took, and what came of it where that is to be recorded; what is recorded."""
        self.counts["seconds"] += seconds
        self.counts["money"] += difference
        self._number += 1
        recorded = None
        if self._cassette is not None and outcome is not None:
            text = json.dumps(outcome, separators=(",", ":"))
            recorded = RecordedReply(request, text, seconds)
        return await self._noted.ask(
            None, _Done(LedgerEntry(current_step(), request.kind, difference, seconds), recorded, self._number)
        )

    async def _look_up(
        self, group: None, asked: list[_Asked], arrived: float
    ) -> Sequence[RecordedReply | Refusal | Exception | None]:
        return await asyncio.to_thread(self._find_or_reserve, asked)

    def _find_or_reserve(self, asked: Sequence[_Asked]) -> list[RecordedReply | Refusal | Exception | None]:
        found: list[RecordedReply | Refusal | Exception | None] = [None] * len(asked)
        if self._cassette is not None:
            found = list(self._cassette.find_each([a.request.key for a in asked]))
        missing = [i for i, known in enumerate(found) if known is None]
        if self.replays_only:
            assert self._cassette is not None
            for i in missing:
                found[i] = self._cassette.miss(asked[i].request)
        elif missing:
            calls = [LedgerEntry(asked[i].step, asked[i].request.kind, asked[i].money) for i in missing]
            for i, refusal in zip(missing, self._ledger.reserve(calls), strict=True):
                found[i] = refusal
        return found

    async def _note(self, group: None, done: list[_Done], arrived: float) -> Sequence[RecordedReply | Exception | None]:
        return await asyncio.to_thread(self._settle_and_keep, done)

    def _settle_and_keep(self, done: Sequence[_Done]) -> list[RecordedReply | Exception | None]:
        self._ledger.settle([d.entry for d in done])
        kept: list[RecordedReply | Exception | None] = [None] * len(done)
        if self._cassette is not None:
            to_keep = [(i, d.recorded) for i, d in enumerate(done) if d.recorded is not None]
            rows = self._cassette.keep_each([(recorded.request.key, recorded) for _, recorded in to_keep])
            for (i, _), row in zip(to_keep, rows, strict=True):
                kept[i] = row
        return kept

    def bill(self) -> Mapping[str, float]:
        """`counts`, with money as money; empty for a meter that is not in use."""
        if not self.in_use:
            return {}
        return {**self.counts, "money": money(round(self.counts["money"]))}


def _read(recorded: RecordedReply, form: Form[T]) -> T:
    """Raises a failure that is recorded."""
    outcome = json.loads(recorded.outcome)
    if "failure" in outcome:
        kind, message = outcome["failure"]
        raise form.error(message, kind=kind)
    return form.read(outcome["reply"])
