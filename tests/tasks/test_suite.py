"""The tasks of a suite, from those of its members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from agentgrpo.core.errors import DataError
from agentgrpo.core.types import Task
from agentgrpo.tasks.mixture import Mixture
from agentgrpo.tasks.order import TaskOrder
from agentgrpo.tasks.suite import MemberTasks, SuiteTasks
from tests import builders


class Listed:
    """A TaskDataset of as many training tasks, and one test task; a mixture where it has one."""

    def __init__(self, count: int, mixture: Mixture | None = None, prefixes: Sequence[str] = ("",)) -> None:
        self.fingerprint = f"{count}"
        self.mixture, self.notes = mixture, ("as it is",)
        self._splits = {
            "train": [builders.task(id=f"{p}{i}") for i in range(count) for p in prefixes],
            "dev": [],
            "test": [builders.task(id="x")],
        }

    def split(self, name: str) -> Sequence[Task]:
        return self._splits[name]

    def corpora(self) -> dict[str, Sequence[object]]:
        return {"vdb": []}

    def thesaurus(self) -> dict[str, Sequence[str]]:
        return {}


def suite(**members: tuple[Listed, float]) -> SuiteTasks:
    return SuiteTasks(members={n: (MemberTasks(n, of), weight) for n, (of, weight) in members.items()})  # type: ignore[arg-type]


def test_ids_begin_with_the_member_and_a_split_has_the_members_in_turn() -> None:
    data = suite(a=(Listed(3), 1.0), b=(Listed(1), 1.0))
    assert [task.id for task in data.split("train")] == ["a:0", "b:0", "a:1", "a:2"]
    assert [task.id for task in data.split("test")] == ["a:x", "b:x"]
    assert data.corpora() == {}
    with pytest.raises(DataError, match="split 'tset'; this task set has train, dev, test"):
        data.split("tset")


def test_training_meets_the_members_by_weight_and_the_sources_of_a_member_by_theirs() -> None:
    """Of 12 tasks a (weight 1) has 3, and b (3) has 9, of which x (1) has 3 and y (2) has 6."""
    mixed = Listed(40, Mixture(weights={"x": 1.0, "y": 2.0}), ("x:", "y:"))
    data = suite(a=(Listed(40), 1.0), b=(mixed, 3.0))
    order = TaskOrder(data.split("train"), tasks_per_step=12, seed=0, mixture=data.mixture)
    taken = [task.id for step in range(5) for task in order.take(step)]
    assert Counter(id.rpartition(":")[0] for id in taken) == {"a": 15, "b:x": 15, "b:y": 30}


def test_the_fingerprint_is_that_of_names_data_and_weights() -> None:
    prints = {
        suite(a=(Listed(3), 1.0)).fingerprint,
        suite(b=(Listed(3), 1.0)).fingerprint,
        suite(a=(Listed(4), 1.0)).fingerprint,
        suite(a=(Listed(3), 2.0)).fingerprint,
    }
    assert len(prints) == 4
    assert suite(a=(Listed(3), 1.0)).fingerprint in prints
