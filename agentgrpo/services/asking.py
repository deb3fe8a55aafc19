"""The step and the episode that a call is made for, and the bill that it is counted on, as context variables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(slots=True)
class Account:
    """The calls of one attempt at an episode, paid for or replayed, so that a replay reaches its limits at the same
    calls."""

    calls: Counter[str] = field(default_factory=Counter)
    money: int = 0
    """Money in billionths."""


_step: ContextVar[int | None] = ContextVar("step", default=None)
_account: ContextVar[Account | None] = ContextVar("account", default=None)
_bill: ContextVar[MutableMapping[str, float] | None] = ContextVar("bill", default=None)


@contextmanager
def asking_step(step: int) -> Iterator[None]:
    """Count calls inside the block for this training step. Other calls, as in evaluations, count for the run only."""
    token = _step.set(step)
    try:
        yield
    finally:
        _step.reset(token)


@contextmanager
def asking_episode() -> Iterator[Account]:
    """Count calls inside the block for one attempt at an episode; yields its Account."""
    account = Account()
    token = _account.set(account)
    try:
        yield account
    finally:
        _account.reset(token)


@contextmanager
def asking_on(bill: MutableMapping[str, float]) -> Iterator[None]:
    """Let `count` add to `bill` inside the block."""
    token = _bill.set(bill)
    try:
        yield
    finally:
        _bill.reset(token)


def count(name: str) -> None:
    """Add one to `name` on the current bill, if any."""
    if (bill := _bill.get()) is not None:
        bill[name] = bill.get(name, 0.0) + 1


def current_step() -> int | None:
    return _step.get()


def current_account() -> Account | None:
    return _account.get()
