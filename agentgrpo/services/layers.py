"""The layers before every service, in their fixed order:

    EpisodeLimited -> Once -> Recorded (if there is a cassette) -> Budgeted -> Direct

A replayed answer costs nothing, so the budget comes after the cassette. An episode must reach its limits in a replay at
the same call as in the recording, so the episode's limits come before the cassette. A further layer is a class with
`ask` and one line in `layered`.

Requests of one event-loop tick are looked up, counted and recorded together, so that a server that answers batches
still gets batches."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, TypeVar

from agentgrpo.core.concurrency import Batcher, Limiter, PerLoop
from agentgrpo.core.errors import BudgetSpent, EpisodeError, RetrieverError
from agentgrpo.services.asking import current_account, current_step
from agentgrpo.services.budget import ASKED_BY_POLICY, OVER_BUDGET, Budget, number, units
from agentgrpo.services.cassette import Cassette, RecordedReply, ServiceRequest
from agentgrpo.services.ledger import Ledger, LedgerEntry, Refusal
from agentgrpo.services.paid import Shared
from agentgrpo.services.service import Answer, Direct, Form, Request, Service

T = TypeVar("T")
_AT_ONCE = 256
"""Maximum number of calls that are looked up, counted or recorded together."""


def layered(
    *, budget: Budget, ledger: Ledger, cassette: Cassette | None, replays_only: bool, counts: MutableMapping[str, float]
) -> Service:
    """Return the service with its layers, innermost first. counts: totals of the layers by name (see Meter)."""
    service: Service = Direct(counts)
    service = Budgeted(service, ledger, budget=budget, counts=counts)
    if cassette is not None:
        service = Recorded(service, cassette, replays_only=replays_only, counts=counts)
    service = Once(service, shares_effects=cassette is not None)
    return EpisodeLimited(service, budget)


class EpisodeLimited:
    """Limits on the calls of an episode; replayed calls count too."""

    def __init__(self, then: Service, budget: Budget) -> None:
        self._then, self._limits = then, budget.per_episode
        self._prices = {kind: units(price) for kind, price in budget.prices.by_kind.items()}

    async def ask(self, request: Request[T]) -> Answer[T]:
        """Pass the request on. Raises RetrieverError (over_budget) past a limit of the episode."""
        account = current_account() if request.kind in ASKED_BY_POLICY else None
        if account is not None:
            kind, price = request.kind, self._prices[request.kind]
            passed = self._limits.passed_by(kind, price, calls=account.calls[kind], money_spent=account.money)
            if passed is not None:
                raise RetrieverError(f"budget.per_episode.{passed[0]}={number(passed[1])} is spent", kind=OVER_BUDGET)
            account.calls[kind] += 1
            account.money += price
        return await self._then.ask(request)


class Once:
    """Ask equal requests that are under way once. shares_effects: also share requests with effects, which a cassette
    would answer equally anyway."""

    def __init__(self, then: Service, *, shares_effects: bool) -> None:
        self._then, self._shares_effects = then, shares_effects
        self._underway: PerLoop[dict[ServiceRequest, Shared[Any]]] = PerLoop(dict)

    async def ask(self, request: Request[T]) -> Answer[T]:
        underway, key = self._underway.get(), ServiceRequest.of(request.kind, request.body)
        is_own = request.has_effects and not self._shares_effects
        known: Shared[Answer[T]] | None = None if is_own else underway.get(key)
        if known is None or known.is_over:
            shared = Shared(self._then.ask(request))
            if not is_own:
                underway[key] = shared
        else:
            shared = known
        try:
            return await shared.wait()
        finally:
            if underway.get(key) is shared and shared.is_over:
                del underway[key]


class Recorded:
    """Answer from the cassette, and record answers that it does not have."""

    def __init__(
        self, then: Service, cassette: Cassette, *, replays_only: bool, counts: MutableMapping[str, float]
    ) -> None:
        self._then, self._cassette, self._replays_only, self._counts = then, cassette, replays_only, counts
        file = Limiter(1)
        self._found: Batcher[None, ServiceRequest, RecordedReply | None] = Batcher(
            self._find, max_batch=_AT_ONCE, limiter=file
        )
        self._kept: Batcher[None, RecordedReply, RecordedReply] = Batcher(self._keep, max_batch=_AT_ONCE, limiter=file)

    async def ask(self, request: Request[T]) -> Answer[T]:
        """Return the recorded answer, or record a new one. Raises CassetteMiss, and recorded failures."""
        key = ServiceRequest.of(request.kind, request.body)
        recorded = await self._found.ask(None, key)
        if recorded is not None:
            self._counts["replayed"] += 1
            return Answer(_read(recorded, request.form), paid=False)
        if self._replays_only:
            raise self._cassette.miss(key)
        began = time.monotonic()
        try:
            answer = await self._then.ask(request)
            outcome = {"reply": request.form.write(answer.value)}
        except EpisodeError as e:
            if e.kind not in request.form.facts:
                self._counts["unrecorded"] += 1
                raise
            outcome = {"failure": [e.kind, str(e)]}
        text = json.dumps(outcome, separators=(",", ":"))
        kept = await self._kept.ask(None, RecordedReply(key, text, time.monotonic() - began))
        return Answer(_read(kept, request.form))

    async def _find(
        self, group: None, asked: list[ServiceRequest], arrived: float
    ) -> Sequence[RecordedReply | Exception | None]:
        return await asyncio.to_thread(self._cassette.find_each, [request.key for request in asked])

    async def _keep(
        self, group: None, replies: list[RecordedReply], arrived: float
    ) -> Sequence[RecordedReply | Exception]:
        return await asyncio.to_thread(self._cassette.keep_each, [(r.request.key, r) for r in replies])


def _read(recorded: RecordedReply, form: Form[T]) -> T:
    """Return a recorded answer, or raise a recorded failure."""
    outcome: Mapping[str, Any] = json.loads(recorded.outcome)
    if "failure" in outcome:
        kind, message = outcome["failure"]
        raise form.error(message, kind=kind)
    return form.read(outcome["reply"])


class Budgeted:
    """Limits of the step and of the run. Before a call is made, it is counted and its highest possible cost is set
    aside (see ledger)."""

    def __init__(self, then: Service, ledger: Ledger, *, budget: Budget, counts: MutableMapping[str, float]) -> None:
        self._then, self._ledger, self._counts = then, ledger, counts
        self._prices = {kind: units(price) for kind, price in budget.prices.by_kind.items()}
        self._calls: PerLoop[dict[asyncio.Task[Any], int]] = PerLoop(dict)  # live calls -> money set aside for them
        self._number = 0
        file = Limiter(1)
        self._reserved: Batcher[None, tuple[int, LedgerEntry], Refusal | None] = Batcher(
            self._reserve, max_batch=_AT_ONCE, limiter=file
        )
        self._settled: Batcher[None, tuple[int, LedgerEntry], None] = Batcher(
            self._settle, max_batch=_AT_ONCE, limiter=file
        )

    async def ask(self, request: Request[T]) -> Answer[T]:
        """Pass the request on within the limits. Raises BudgetSpent past a limit of the step or run."""
        estimate, task = units(request.estimate), asyncio.current_task()
        assert task is not None
        await self._admit(request.kind, estimate)
        self._calls.get()[task] = estimate
        try:
            began = time.monotonic()
            try:
                answer = await self._then.ask(request)
            except EpisodeError as e:
                await self._note(request.kind, began, -estimate if e.kind in request.form.unbilled else 0)
                raise
            cost = units(request.form.cost(answer.value)) if request.form.cost is not None else 0
            await self._note(request.kind, began, cost - estimate)
            return answer
        finally:
            del self._calls.get()[task]

    async def _admit(self, kind: str, estimate: int) -> None:
        price = self._prices[kind] + estimate
        while True:
            refusal = await self._reserved.ask(None, self._numbered(LedgerEntry(current_step(), kind, price)))
            if refusal is None:
                break
            await self._refuse(refusal)
        self._counts[f"calls/{kind}"] += 1
        self._counts["money"] += price

    async def _refuse(self, refusal: Refusal) -> None:
        """Return if a call under way may cost less than was set aside for it, once such a call has ended. Otherwise
        wait for all calls, so that every paid call is recorded, and raise BudgetSpent."""
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

    async def _note(self, kind: str, began: float, difference: int) -> None:
        """Record a call's duration, and the difference between its cost and the cost counted before."""
        seconds = time.monotonic() - began
        self._counts["seconds"] += seconds
        self._counts["money"] += difference
        await self._settled.ask(None, self._numbered(LedgerEntry(current_step(), kind, difference, seconds)))

    def _numbered(self, entry: LedgerEntry) -> tuple[int, LedgerEntry]:
        """Make each entry unique, so that equal calls are counted separately."""
        self._number += 1
        return self._number, entry

    async def _reserve(
        self, group: None, calls: list[tuple[int, LedgerEntry]], arrived: float
    ) -> Sequence[Refusal | Exception | None]:
        return await asyncio.to_thread(self._ledger.reserve, [entry for _, entry in calls])

    async def _settle(
        self, group: None, calls: list[tuple[int, LedgerEntry]], arrived: float
    ) -> Sequence[Exception | None]:
        await asyncio.to_thread(self._ledger.settle, [entry for _, entry in calls])
        return [None] * len(calls)
