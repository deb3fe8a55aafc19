"""Protocols of task data sets: named splits of Tasks, and the corpora that answer them."""

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
    """Implement TaskDataset.split for a data set that holds its splits by name."""
    if name not in splits:
        raise DataError(f"split '{name}'; this task set has {', '.join(splits)}.{did_you_mean(name, tuple(splits))}")
    return splits[name]


class TaskDataset(Protocol):
    fingerprint: str
    """Hash of everything that determines the tasks and corpora: equal fingerprints, equal data."""

    def split(self, name: str) -> Sequence[Task]:
        """Tasks of "train", "dev" or "test", in a fixed order. Raises DataError for a split that does not exist."""

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        """Passages by retriever name: "vdb", optionally "web", and "pages", which environment.fetcher serves if its
        name is task."""

    def thesaurus(self) -> Mapping[str, Sequence[str]]:
        """Query word -> words that the documents use instead, for a reranker without a model; may be empty."""


@runtime_checkable
class MixedDataset(TaskDataset, Protocol):
    """A TaskDataset of several sources."""

    mixture: Mixture | None
    """How often training draws from each source; None = every task equally often."""
    notes: Sequence[str]
    """One line for the user about each thing that was read, found or left out."""


@runtime_checkable
class HeldOutDataset(TaskDataset, Protocol):
    """A TaskDataset that hides the facts that dev and test ask about from the searches of training."""

    def training_corpora(self) -> Mapping[str, Sequence[Passage]] | None:
        """The corpora that environment=search searches for "train" tasks if the retriever is embedded; None =
        `corpora`."""


class Demonstrator(Protocol):
    """A scripted policy for one episode, for warm starts and oracles."""

    def act(self, context: str) -> str | ParsedTurn:
        """Return the next turn, given the whole context so far as text: the turn's text, or a ParsedTurn for a renderer
        with tool calls to write."""


@runtime_checkable
class ToolDemonstrator(Protocol):
    """A demonstrator that needs no context, and so no format: it knows the task and receives the tool results."""

    def next_turn(self, answered: Sequence[str]) -> ParsedTurn:
        """answered: the results of its calls so far, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """The text conventions of demonstrations that a warm start needs to train a tokenizer and weigh the loss."""

    answer: str
    """The opening of a turn that answers and so ends the episode."""
    control_strings: tuple[str, ...] | None = None
    """Strings added to the tokenizer as single tokens; None = the search agent's tags."""
    words: tuple[str, ...] | None = None
    """Words that are single tokens when they stand alone; None = the values of the search agent's attributes."""
    splits_digits: bool = False
    """Every digit is a separate token, and so is the s of a plural."""
    parts: tuple[str, ...] = ()
    """Regular expressions: no token spans a match together with the text around it."""


class DemonstrationWorld(Protocol):
    """A small world for demonstrations: tasks, corpora and a demonstrator per task."""

    tasks: Sequence[Task]
    phase: int
    """When training uses it: after all worlds of lower phases, mixed with those of the same phase."""

    def corpora(self) -> Mapping[str, Sequence[Passage]]: ...

    def demonstrator(self, task: Task) -> Demonstrator | ToolDemonstrator: ...


@runtime_checkable
class TeachingDataset(TaskDataset, Protocol):
    """A TaskDataset that can demonstrate tasks like its own, for warm and cold starts."""

    language: Language

    @property
    def demonstration_fingerprint(self) -> str:
        """Hash of everything that determines the demonstration worlds and the demonstrations in them."""

    def demonstration_worlds(self, count: int, tasks_per_world: int) -> Iterable[DemonstrationWorld]: ...


@runtime_checkable
class DemonstratedDataset(TeachingDataset, Protocol):
    """A TaskDataset that can demonstrate its own tasks."""

    def oracle(self, task: Task) -> Demonstrator | ToolDemonstrator:
        """The ideal policy, against which the trained one is measured."""
