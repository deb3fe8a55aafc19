"""The tasks of a suite are its members' tasks; each id begins with the member's name, e.g. "facts:12"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import chain, zip_longest

from agentgrpo.core.types import Passage, Task
from agentgrpo.tasks.base import SPLITS, HeldOutDataset, MixedDataset, TaskDataset, split_of
from agentgrpo.tasks.mixture import Mixture


def member_of(task: Task) -> str:
    return task.id.partition(":")[0]


def of_member(tasks: Sequence[Task], name: str) -> list[Task]:
    return [task for task in tasks if member_of(task) == name]


class MemberTasks:
    """A suite member's TaskDataset, with the member's name in its task ids and notes."""

    def __init__(self, name: str, dataset: TaskDataset) -> None:
        self._dataset = dataset
        self.fingerprint = dataset.fingerprint
        self._splits = {
            split: [replace(task, id=f"{name}:{task.id}") for task in dataset.split(split)] for split in SPLITS
        }
        self.mixture = dataset.mixture if isinstance(dataset, MixedDataset) else None
        self.notes = (
            tuple(f"suite.{name}: {note}" for note in dataset.notes) if isinstance(dataset, MixedDataset) else ()
        )

    def split(self, name: str) -> Sequence[Task]:
        return split_of(self._splits, name)

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        return self._dataset.corpora()

    def training_corpora(self) -> Mapping[str, Sequence[Passage]] | None:
        return self._dataset.training_corpora() if isinstance(self._dataset, HeldOutDataset) else None

    def thesaurus(self) -> Mapping[str, Sequence[str]]:
        return self._dataset.thesaurus()


class SuiteTasks:
    """The tasks of all members in turn, so that the first tasks of a split have equally many of each
    (tasks.base.MixedDataset)."""

    def __init__(self, *, members: Mapping[str, tuple[MemberTasks, float]]) -> None:
        """members: name -> (tasks, weight)."""
        datasets = {name: dataset for name, (dataset, _) in members.items()}
        self._splits = {
            split: [t for t in chain(*zip_longest(*(d.split(split) for d in datasets.values()))) if t is not None]
            for split in SPLITS
        }
        weights: dict[str, float] = {}
        for name, (dataset, weight) in members.items():
            of = {} if dataset.mixture is None else dataset.mixture.weights
            weights |= {f"{name}:{source}": weight * part / sum(of.values()) for source, part in of.items()}
            weights |= {} if of else {name: weight}
        self.mixture: Mixture | None = Mixture(weights=weights, key="suite")
        self.notes: Sequence[str] = ()
        """Empty: each member's notes are reported separately."""
        told = [(name, dataset.fingerprint, weight) for name, (dataset, weight) in members.items()]
        self.fingerprint = blake2b(repr(told).encode(), digest_size=16).hexdigest()

    def split(self, name: str) -> Sequence[Task]:
        return split_of(self._splits, name)

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        """Empty: each member searches its own corpora."""
        return {}

    def thesaurus(self) -> Mapping[str, Sequence[str]]:
        return {}
