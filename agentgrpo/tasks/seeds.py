"""Task sets whose tasks are seeds; no seed is in two splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentgrpo.config.values import Count
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Message, Passage, Task
from agentgrpo.tasks.base import SPLITS, split_of
from agentgrpo.tasks.generated import hash_of

SPACE = 10**9
"""Maximum number of seeds of a split; all three splits fit in the 32 bits that numpy accepts."""
BLOCK = 10**5
"""Offset between consecutive values of task.seed; their sets share no task if the splits are smaller than this."""


def seeds_of(seed: int, sizes: Mapping[str, int]) -> dict[str, range]:
    """The seeds of each split. Splits share no seed, not even between runs of different `seed`. Raises ConfigError."""
    most = (SPACE - max(sizes.values())) // BLOCK
    if not 0 <= seed <= most:
        raise ConfigError(f"task.seed={seed}; 0 to {most} are allowed")
    starts = {name: at * SPACE + seed * BLOCK for at, name in enumerate(SPLITS)}
    return {name: range(start, start + sizes[name]) for name, start in starts.items()}


def names_of(given: str | Sequence[str], setting: str) -> tuple[str, ...]:
    """Return one or several names as a tuple. Raises ConfigError for an empty list or a repeated name."""
    names = (given,) if isinstance(given, str) else tuple(given)
    if not names or len({*names}) < len(names):
        raise ConfigError(f"{setting}={list(names)}; name one, or several different ones")
    return names


class Seeds:
    """Implements tasks.base.TaskDataset: tasks that are seeds, for environments that make their own problems.

    `Task.metadata`: seed, and kind if `kinds` are given, such as names of games; the tasks take them in turn."""

    def __init__(
        self,
        *,
        kinds: str | Sequence[str] | None = None,
        seed: int = 0,
        train_tasks: Count = 1000,
        dev_tasks: Count = 100,
        test_tasks: Count = 500,
        instruction: str = "Begin.",
    ) -> None:
        """instruction: the opening of each task, before the environment's own text. Raises ConfigError."""
        if not instruction:
            raise ConfigError("task.instruction is empty; a policy's context cannot begin without a word")
        names = (None,) if kinds is None else names_of(kinds, "task.kinds")
        seeds = seeds_of(seed, {"train": train_tasks, "dev": dev_tasks, "test": test_tasks})
        self._splits = {
            split: tuple(_task(names[i % len(names)], number, instruction) for i, number in enumerate(numbers))
            for split, numbers in seeds.items()
        }
        self.fingerprint = hash_of([[task.id for task in tasks] for tasks in self._splits.values()], instruction)

    def split(self, name: str) -> Sequence[Task]:
        return split_of(self._splits, name)

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        return {}

    def thesaurus(self) -> Mapping[str, Sequence[str]]:
        return {}


def _task(kind: str | None, seed: int, instruction: str) -> Task:
    said = (Message(role="user", content=instruction),)
    of = {} if kind is None else {"kind": kind}
    return Task(
        id=f"{kind or 'seed'}:{seed}", messages=said, references=(), metadata={**of, "seed": seed}, data_source="seeds"
    )
