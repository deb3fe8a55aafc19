"""What a task data set is: named splits of Tasks, and the corpora they are answered from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from agentgrpo.types import Passage, Task


class TaskDataset(Protocol):
    fingerprint: str
    """Hash of everything that determines the tasks and corpora: equal fingerprints, equal data."""

    def split(self, name: str) -> Sequence[Task]:
        """Tasks of "train", "dev" or "test", in a fixed order. Raises DataError for a split that does not exist."""
        ...

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        """Passages by retriever name: "vdb" and, where there is one, "web"."""
        ...

    def thesaurus(self) -> Mapping[str, Sequence[str]]:
        """Query word -> words that the documents use instead, for a reranker that has no model; may be empty."""
        ...


class Demonstrator(Protocol):
    """A scripted policy for one episode: warm starts and oracles."""

    def act(self, context: str) -> str:
        """The next turn's text, given the whole context so far as text."""
        ...


class DemonstrationWorld(Protocol):
    """A small world of its own to demonstrate in: tasks, corpora and a demonstrator per task."""

    tasks: Sequence[Task]

    def corpora(self) -> Mapping[str, Sequence[Passage]]: ...

    def demonstrator(self, task: Task) -> Demonstrator: ...


@runtime_checkable
class DemonstratedDataset(TaskDataset, Protocol):
    """A TaskDataset that can show how its tasks are done."""

    @property
    def demonstration_fingerprint(self) -> str:
        """Hash of everything that determines the demonstration worlds and what is done in them."""
        ...

    def demonstration_worlds(self, count: int, tasks_per_world: int) -> Iterable[DemonstrationWorld]: ...

    def oracle(self, task: Task) -> Demonstrator:
        """The ideal policy: what the trained one is measured against."""
        ...
