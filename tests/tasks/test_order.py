from collections import Counter

import pytest

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import Task
from agentgrpo.tasks.order import TaskOrder, permutation
from tests.builders import task


def tasks(n: int, kinds: str = "a") -> list[Task]:
    return [task(id=f"t{i}", kind=kinds[i % len(kinds)]) for i in range(n)]


def ids(order: TaskOrder, step: int) -> list[str]:
    return [t.id for t in order.take(step)]


def test_every_epoch_takes_each_task_once_in_an_order_of_its_own() -> None:
    order = TaskOrder(tasks(6), tasks_per_step=3, seed=0)
    taken = [i for step in range(4) for i in ids(order, step)]
    assert sorted(taken[:6]) == sorted(taken[6:]) == [f"t{i}" for i in range(6)]
    assert taken[:6] != taken[6:]


def test_a_step_depends_on_seed_and_number_alone() -> None:
    there = [ids(TaskOrder(tasks(7), tasks_per_step=3, seed=5), step) for step in range(9)]
    order = TaskOrder(tasks(7), tasks_per_step=3, seed=5)
    assert [ids(order, step) for step in reversed(range(9))] == there[::-1]
    assert [ids(TaskOrder(tasks(7), tasks_per_step=3, seed=6), step) for step in range(9)] != there


def test_the_order_never_changes_between_versions() -> None:
    assert permutation(6, seed=0, epoch=0) == [5, 1, 4, 0, 3, 2]


def test_cursor() -> None:
    order = TaskOrder(tasks(7), tasks_per_step=3, seed=0)
    assert order.cursor(0) == {"epoch": 0, "index": 0}
    assert order.cursor(1) == {"epoch": 0, "index": 3}
    assert order.cursor(2) == {"epoch": 1, "index": 0}
    assert order.cursor(3) == {"epoch": 1, "index": 3}


def test_no_step_takes_a_task_twice() -> None:
    order = TaskOrder(tasks(7), tasks_per_step=3, seed=0)
    assert [len(set(ids(order, step))) for step in range(50)] == [3] * 50
    # the one task that an epoch leaves out is not always the same
    assert {i for step in range(50) for i in ids(order, step)} == {f"t{i}" for i in range(7)}


def test_strata_have_equal_shares_in_every_batch() -> None:
    order = TaskOrder(tasks(40, "abcd"), tasks_per_step=8, seed=3, stratify_by="kind")
    for step in range(10):
        assert Counter(t.metadata["kind"] for t in order.take(step)) == {"a": 2, "b": 2, "c": 2, "d": 2}


def test_unequal_strata_keep_their_share() -> None:
    mixed = [task(id=f"a{i}", kind="a") for i in range(30)] + [task(id=f"b{i}", kind="b") for i in range(10)]
    order = TaskOrder(mixed, tasks_per_step=4, seed=0, stratify_by="kind")
    shares = [Counter(t.metadata["kind"] for t in order.take(step))["b"] for step in range(10)]
    assert shares == [1] * 10


@pytest.mark.parametrize(
    ("count", "per_step", "key", "error", "says"),
    [
        (0, 4, None, DataError, "there are no tasks"),
        (4, 0, None, ConfigError, "rollout.tasks_per_step=0"),
        (4, 5, None, ConfigError, "rollout.tasks_per_step=5; 1 to 4 are allowed"),
        (4, 4, "topic", DataError, "stratify_by=topic, but task 't0' has no such metadata"),
    ],
)
def test_refusals(count: int, per_step: int, key: str | None, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        TaskOrder(tasks(count), tasks_per_step=per_step, seed=0, stratify_by=key)


def replaced(order: TaskOrder, of: list[Task], *taken: str, step: int = 0, round_number: int = 1) -> list[str]:
    return [t.id for t in order.replace(of, step=step, round_number=round_number, taken=taken)]


def test_replacements_are_other_tasks_of_the_step_and_its_round_alone() -> None:
    order = TaskOrder(tasks(20), tasks_per_step=4, seed=0)
    first = order.take(0)
    taken = [t.id for t in first]
    found = replaced(order, first[:3], *taken)
    assert found == replaced(TaskOrder(tasks(20), tasks_per_step=4, seed=0), first[:3], *taken)
    assert len({*found, *taken}) == 7
    assert replaced(order, first[:3], *taken, round_number=2) != found
    assert replaced(order, first[:3], *taken, step=1) != found
    assert replaced(TaskOrder(tasks(20), tasks_per_step=4, seed=1), first[:3], *taken) != found
    # a task more or less that was taken changes nothing else
    assert [i for i in replaced(order, first[:3], *taken, found[0]) if i in found] == found[1:]


def test_replacements_are_of_the_same_strata_and_end_with_these() -> None:
    all_tasks = tasks(9, "abc")
    order = TaskOrder(all_tasks, tasks_per_step=3, seed=0, stratify_by="kind")
    lacking = [all_tasks[0], all_tasks[1], all_tasks[3]]  # a, b, a
    found = replaced(order, lacking, "t0", "t1", "t3")
    assert sorted(int(i[1:]) % 3 for i in found) == [0, 1]  # of kind a only t6 is left
    assert "t6" in found
    assert replaced(order, lacking, *(t.id for t in all_tasks)) == []
