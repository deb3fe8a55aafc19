"""What others may publish: functions that take JSON and return it, called in processes of their own."""

from __future__ import annotations

import json
import os
import random
import time
from typing import Any

import numpy as np

from agentgrpo.environments.published.playing import Seen


def draws(*, times: int) -> str:
    return json.dumps([random.random() for _ in range(times)])


def fails() -> str:
    raise ValueError("no such thing;\nallowed is another")


def hangs() -> str:
    time.sleep(600)
    return ""


def ends() -> str:
    os._exit(3)


def process() -> str:
    return json.dumps(os.getpid())


def forks(*, n: int) -> str:
    """Comes back twice, and the child first."""
    if n == 1 and os.fork():
        time.sleep(0.5)
    return json.dumps([n, os.getpid()])


class Dice:
    """A game that draws from the generators that everybody shares; it ends with the action "stop"."""

    made = 0

    def __init__(self) -> None:
        Dice.made += 1
        self._said = ""

    def open(self) -> Seen:
        return self._thrown("open")

    def act(self, action: str) -> Seen:
        return self._thrown(action)

    def _thrown(self, action: str) -> dict[str, Any]:
        self._said += action
        text = f"{self._said}: {random.random()} {np.random.rand()}"
        return {"text": text, "is_done": action == "stop", "reward": 0.0, "is_invalid": False}


def guessing(observation: str) -> str:
    """An opponent of TicTacToe's that takes the first free square."""
    return observation.rpartition("Available Moves: '")[2][:3]
