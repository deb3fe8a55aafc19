"""Several games side by side in a worker process, each with its own state of Python's and numpy's generators. Standard
library and numpy only.

Each call sends a game's whole history. If this process does not have the game open, for example after a crash, it is
played again from the seed, with the same result."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

Seen = Mapping[str, Any]
"""text: shown to the player. is_done: the game is over. reward: for the action. is_invalid: the action was invalid."""
_MOST = 256


class Game(Protocol):
    def open(self) -> Seen: ...

    def act(self, action: str) -> Seen: ...


class _Played:
    """A game, its history, and the generators' states after its last move."""

    def __init__(self, make: Callable[[], Game], seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed)
        self.game, self.actions = make(), list[str]()
        self.seen = self.game.open()
        self._keep()

    def act(self, action: str) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        self.actions.append(action)
        self.seen = self.game.act(action)
        self._keep()

    def _keep(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()


_open: OrderedDict[str, _Played] = OrderedDict()


def play(make: Callable[[], Game], *, key: str, seed: int, actions: Sequence[str]) -> Seen:
    """Return the observation after these actions. key: the attempt's key, which no other game has."""
    played = _open.pop(key, None)
    if played is None or not actions or played.actions != [*actions[:-1]]:
        played = _Played(make, seed)
    for action in actions[len(played.actions) :]:
        played.act(action)
    if not played.seen["is_done"]:
        _open[key] = played
        while len(_open) > _MOST:
            _open.popitem(last=False)
    return played.seen
