"""Who asks: the step and the episode that a call is made for, and the bill that it is written on, known to whatever is
called inside of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(slots=True)
class Account:
    """What one attempt at an episode has asked for, paid for or replayed: a replay must meet its limits where the
    recording met them."""

    calls: Counter[str] = field(default_factory=Counter)
    money: int = 0
    """In billionths."""


_step: ContextVar[int | None] = ContextVar("step", default=None)
_account: ContextVar[Account | None] = ContextVar("account", default=None)
_bill: ContextVar[MutableMapping[str, float] | None] = ContextVar("bill", default=None)


@contextmanager
def asking_step(step: int) -> Iterator[None]:
    """What is asked inside is for this step of training. Outside of any, as in evaluations, it is for the run alone."""
    token = _step.set(step)
    try:
        yield
    finally:
        _step.reset(token)


@contextmanager
def asking_episode() -> Iterator[Account]:
    """What is asked inside is for one attempt at an episode."""
    account = Account()
    token = _account.set(account)
    try:
        yield account
    finally:
        _account.reset(token)


@contextmanager
def asking_on(bill: MutableMapping[str, float]) -> Iterator[None]:
    """What `count` names inside is added to `bill`."""
    token = _bill.set(bill)
    try:
        yield
    finally:
        _bill.reset(token)


def count(name: str) -> None:
    """One more of `name`, on the bill of whoever asks, if there is one."""
    if (bill := _bill.get()) is not None:
        bill[name] = bill.get(name, 0.0) + 1


def current_step() -> int | None:
    return _step.get()


def current_account() -> Account | None:
    return _account.get()
