"""The processes that train together: what all of them must call, in one order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from torch import Tensor

T = TypeVar("T")


class Stop(Protocol):
    """What ends a process's work early, from any thread."""

    signal_name: str
    """The signal that asked for it; "" = none did."""

    def request(self, signal_name: str) -> None: ...

    def fail(self, error: Exception) -> None:
        """Give up what is waited for: it raises `error`."""
        ...


class World(Protocol):
    """`add_up` and `gather` are collectives: all processes call them, in the same order. So is `exchange`, in an order
    of its own: it may be awaited while another thread is in one of the other two."""

    rank: int
    """This process, from 0."""
    size: int
    phase: str
    """What this process is at: it is named where the others wait for it in vain. Who gathers is at the same as all."""

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes the sum over all processes, in place; the same bits everywhere. What is sharded is left
        as it is: its gradients are added up where they arise."""
        ...

    def gather(self, value: T) -> list[T]:
        """Everybody's value, by rank."""
        ...

    async def exchange(self, value: T) -> list[T]:
        """The same, and the event loop runs on. Not to be cancelled: the others count on this process."""
        ...

    def heed(self, stop: Stop) -> None:
        """From here on a stop that one process is asked for reaches all of them, and the loss of one ends the work of
        the others. Called inside of the event loop that works."""
        ...

    def keep_stacks(self, directory: Path) -> None:
        """Where to write what every thread is at when a process is lost."""
        ...


class Alone:
    """One process."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self.phase = ""

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        pass

    def gather(self, value: T) -> list[T]:
        return [value]

    async def exchange(self, value: T) -> list[T]:
        return [value]

    def heed(self, stop: Stop) -> None:
        pass

    def keep_stacks(self, directory: Path) -> None:
        pass
