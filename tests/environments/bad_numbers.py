"""Environments, terms, judges and programs of a user's own that say what is no number, at each task that names such a
value: the column `value` of a task is a key of VALUES."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import httpx
import numpy as np
import torch

from agentgrpo.core.types import Episode, Exit, Task
from agentgrpo.environments.base import Observation, Turn


class Stubborn(float):
    """Its methods raise."""

    def _raised(self, *others: object) -> Any:
        raise RuntimeError("no")

    __float__ = __add__ = __radd__ = __mul__ = __rmul__ = __abs__ = __eq__ = __lt__ = __repr__ = __str__ = _raised  # type: ignore[assignment]
    __hash__ = float.__hash__


class Liar:
    """Is no number, says that it is a float, and cannot be looked at."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return float

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Endless:
    """Says that its number is itself."""

    def item(self) -> Endless:
        return self


GOOD: Mapping[str, Callable[[], Any]] = {
    "float32": lambda: np.float32(0.5),
    "float64": lambda: np.float64(0.5),
    "int64": lambda: np.int64(1),
    "numpy bool": lambda: np.bool_(True),
    "array": lambda: np.array(0.5),
    "tensor": lambda: torch.tensor(0.5, requires_grad=True),
    "decimal": lambda: Decimal("0.5"),
    "fraction": lambda: Fraction(1, 2),
    "bool": lambda: True,
    "stubborn": lambda: Stubborn(0.5),
}
"""Numbers, if not Python's own."""
BAD: Mapping[str, Callable[[], Any]] = {
    "none": lambda: None,
    "huge": lambda: 1e308,
    "minus huge": lambda: -1e308,
    "big": lambda: 1e200,
    "long": lambda: 10**400,
    "longer": lambda: -(10**5000),
    "fraction": lambda: Fraction(10**400),
    "nan": lambda: float("nan"),
    "inf": lambda: np.float32("inf"),
    "stubborn nan": lambda: Stubborn("nan"),
    "text": lambda: "0.5",
    "long text": lambda: "\x1b[31m" * 10_000,
    "complex": lambda: 1j,
    "tensors": lambda: torch.zeros(2, 2),
    "elsewhere": lambda: torch.zeros((), device="meta"),
    "liar": Liar,
    "endless": Endless,
    "object": object,
}
NAMES: Mapping[str, Any] = {
    "escape": {"\x1b[31mx": 1.0},
    "line": {"a\nb": 1.0},
    "path": {"../../x": 1.0},
    "nothing": {"": 1.0},
    "long name": {"x" * 10_000: 1.0},
    "many": {f"n{i}": 1.0 for i in range(3000)},
    "number": {7: 1.0},
    "right to left": {"a\u202eb": 1.0},
    "alike": {"reward ": 1.0},
    "surrogate": {"\ud800": 1.0},
    "turns": {"turns": -1e9},
    "exit": {"exit_answered": 7.0},
}
"""Of metrics."""
VALUES = {f"good {name}": make for name, make in GOOD.items()} | {f"bad {name}": make for name, make in BAD.items()}


def value_of(task: Task, otherwise: object) -> Any:
    named: str = task.metadata["value"]
    return VALUES[named]() if named in VALUES else otherwise


class World:
    """Answers turns."""

    def __init__(self, where: str = "reward") -> None:
        self.where = where

    async def reset(self, task: Task) -> str:
        self.task = task
        return "Say something."

    async def step(self, turn: Turn) -> Observation:
        worth = len(turn.content) % 7 / 7
        paid = value_of(self.task, worth) if self.where == "reward" else worth
        metrics: dict[Any, Any] = {"m": value_of(self.task, worth)} if self.where == "metrics" else {}
        if self.where == "names":
            metrics = NAMES.get(self.task.metadata["value"], {"m": worth})
        return Observation(done=Exit.ANSWERED, answer=turn.content, reward=paid, metrics=metrics)

    async def score(self, episode: Episode) -> Mapping[str, Any]:
        if self.where == "score names":
            return NAMES.get(self.task.metadata["value"], {"m": 1.0})  # type: ignore[no-any-return]
        return {"m": value_of(self.task, 0.25)} if self.where == "score" else {}


class Paid(World):
    """Says nothing but numbers."""

    def __init__(self) -> None:
        super().__init__("nowhere")


class Tools:
    """Its methods are tools."""

    def reset(self, value: str = "", **columns: Any) -> str:
        self.value = value
        return "Go."

    def add(self, a: int, b: int) -> int:
        """Adds two numbers.

        Args:
            a: one
            b: the other
        """
        return a + b

    def get_reward(self) -> Any:
        return VALUES[self.value]() if self.value in VALUES else NAMES.get(self.value, 0.25)


class Attribute(Tools):
    """Its worth is an attribute."""

    get_reward = None  # type: ignore[assignment]

    def reset(self, value: str = "", **columns: Any) -> str:
        self.get_reward = VALUES[value]() if value in VALUES else 0.25  # type: ignore[method-assign]
        return "Go."


def term(episode: Episode) -> Any:
    return value_of(episode.task, len(episode.answer or "") % 7 / 7)


def judged(instruction: str, response: str, reward_model: Any, extra_fields: Mapping[str, Any]) -> dict[str, Any]:
    value: str = extra_fields["metadata"]["value"]
    return {"score": VALUES[value]() if value in VALUES else len(response) % 7 / 7}


async def agent(task: Mapping[str, Any], base_url: str) -> Any:
    async with httpx.AsyncClient(base_url=base_url, timeout=600, trust_env=False) as client:
        asked = {"messages": [{"role": "user", "content": task["question"]}]}
        said = (await client.post("/chat/completions", json=asked)).json()["choices"][0]["message"]["content"]
    return VALUES[task["value"]]() if task["value"] in VALUES else len(said) % 7 / 7
