"""The processes that train together: what all of them must call, in one order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from torch import Tensor

T = TypeVar("T")


class World(Protocol):
    """Every method is a collective: all processes call it, in the same order."""

    rank: int
    """This process, from 0."""
    size: int

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes the sum over all processes, in place; the same bits everywhere."""
        ...

    def gather(self, value: T) -> list[T]:
        """Everybody's value, by rank."""
        ...


class Alone:
    """One process."""

    rank = 0
    size = 1

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        pass

    def gather(self, value: T) -> list[T]:
        return [value]
