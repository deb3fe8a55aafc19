"""What a task data set is: named splits of Tasks, and the corpora they are answered from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from agentgrpo.core.errors import DataError, did_you_mean
from agentgrpo.core.messages import ParsedTurn
from agentgrpo.core.types import Passage, Task
from agentgrpo.tasks.mixture import Mixture

SPLITS = ("train", "dev", "test")


def split_of(splits: Mapping[str, Sequence[Task]], name: str) -> Sequence[Task]:
    """TaskDataset.split of a set that holds its splits by name."""
    if name not in splits:
        raise DataError(f"split '{name}'; this task set has {', '.join(splits)}.{did_you_mean(name, tuple(splits))}")
    return splits[name]


class TaskDataset(Protocol):
    fingerprint: str
    """Hash of everything that determines the tasks and corpora: equal fingerprints, equal data."""

    def split(self, name: str) -> Sequence[Task]:
        """Tasks of "train", "dev" or "test", in a fixed order. Raises DataError for a split that does not exist."""

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        """Passages by retriever name: "vdb" and, where there is one, "web"; "pages" are those that environment.fetcher
        has where its name is task."""

    def thesaurus(self) -> Mapping[str, Sequence[str]]:
        """Query word -> words that the documents use instead, for a reranker that has no model; may be empty."""


@runtime_checkable
class MixedDataset(TaskDataset, Protocol):
    """A TaskDataset of several sources."""

    mixture: Mixture | None
    """How often training meets each; None = every task equally often."""
    notes: Sequence[str]
    """What was read, found and left out, a line each; for the user."""


@runtime_checkable
class HeldOutDataset(TaskDataset, Protocol):
    """A TaskDataset that keeps what dev and test are asked about out of what training finds."""

    def training_corpora(self) -> Mapping[str, Sequence[Passage]] | None:
        """What environment=search finds for tasks of "train" where the retriever is embedded; None = `corpora`."""


class Demonstrator(Protocol):
    """A scripted policy for one episode: warm starts and oracles."""

    def act(self, context: str) -> str | ParsedTurn:
        """The next turn, given the whole context so far as text: its text, or what a renderer that speaks of tools
        writes it from."""


@runtime_checkable
class ToolDemonstrator(Protocol):
    """One that need not read the context, in whichever format it is: it knows the task, and is told what came back."""

    def next_turn(self, answered: Sequence[str]) -> ParsedTurn:
        """answered: what its calls so far were answered with, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """What demonstrations are written in, as far as a warm start must know it to make a tokenizer and loss weights."""

    answer: str
    """How a turn opens that answers and so ends the episode."""
    control_strings: tuple[str, ...] | None = None
    """Single tokens, trained or not; None = those of the search agent's tags."""
    words: tuple[str, ...] | None = None
    """Single tokens wherever they stand alone; None = the values of the search agent's attributes."""
    splits_digits: bool = False
    """Every digit is a token of its own, and so is the s of a plural."""
    parts: tuple[str, ...] = ()
    """Regular expressions of what no token spans together with what stands around it."""


class DemonstrationWorld(Protocol):
    """A small world of its own to demonstrate in: tasks, corpora and a demonstrator per task."""

    tasks: Sequence[Task]
    phase: int
    """When it is learned from: after all worlds of lower phases, mixed with those of its own."""

    def corpora(self) -> Mapping[str, Sequence[Passage]]: ...

    def demonstrator(self, task: Task) -> Demonstrator | ToolDemonstrator: ...


@runtime_checkable
class TeachingDataset(TaskDataset, Protocol):
    """A TaskDataset that can show how tasks like its own are done: what warm and cold starts learn from."""

    language: Language

    @property
    def demonstration_fingerprint(self) -> str:
        """Hash of everything that determines the demonstration worlds and what is done in them."""

    def demonstration_worlds(self, count: int, tasks_per_world: int) -> Iterable[DemonstrationWorld]: ...


@runtime_checkable
class DemonstratedDataset(TeachingDataset, Protocol):
    """A TaskDataset that can show how its very tasks are done."""

    def oracle(self, task: Task) -> Demonstrator | ToolDemonstrator:
        """The ideal policy: what the trained one is measured against."""
