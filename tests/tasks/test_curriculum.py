"""Measured difficulty, by hand, and what it does to the draw."""

from __future__ import annotations

from collections import Counter

import pytest

from agentgrpo.config.settings import RolloutSettings
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import RewardResult, ScoredGroup, Task
from agentgrpo.tasks.order import FLOOR, Curriculum, TaskOrder, curriculum_of
from tests.builders import episode, group, task


def scored(of: Task, *grades: float | None) -> ScoredGroup:
    rewards = [None if g is None else RewardResult(total=-9.0, terms={}, dimensions={}, correctness=g) for g in grades]
    return ScoredGroup(group=group(*(episode(of) for _ in grades)), rewards=tuple(rewards))


def test_weights_are_highest_at_the_target_and_never_zero() -> None:
    half = Curriculum(target=0.5)
    assert [half.weight(r) for r in (0.0, 0.25, 0.5, 0.75, 1.0)] == pytest.approx([0.05, 0.525, 1.0, 0.525, 0.05])
    hard = Curriculum(target=0.25)
    assert [hard.weight(r) for r in (0.0, 0.25, 1.0)] == pytest.approx([0.05 + 0.95 * 2 / 3, 1.0, 0.05])
    assert [Curriculum(target=t).weight(1.0 - t) for t in (0.0, 1.0)] == pytest.approx([FLOOR, FLOOR])


def test_a_task_that_was_never_tried_weighs_as_much_as_any() -> None:
    assert Curriculum(target=0.3).weight(None) == 1.0


def test_rates_are_a_moving_average_of_the_groups_grades() -> None:
    a, b, c = task(id="a"), task(id="b"), task(id="c")
    before = {"a": 0.5, "d": 0.125}
    found = [scored(a, 1.0, 0.0, 1.0, 1.0), scored(b, 0.0, None, 1.0, 0.5), scored(c, None, None)]
    after = Curriculum(memory=0.25).observe(before, found)
    assert after == {"a": 0.25 * 0.5 + 0.75 * 0.75, "b": 0.5, "d": 0.125}
    assert before == {"a": 0.5, "d": 0.125}  # still what the step before was drawn by
    assert Curriculum(memory=0.0).observe(after, [scored(a, 0.0)])["a"] == 0.0


def test_the_settings_say_which_one() -> None:
    asked = RolloutSettings(curriculum="difficulty", curriculum_target=0.25, curriculum_memory=0.75)
    assert curriculum_of(asked) == Curriculum(target=0.25, memory=0.75)
    assert curriculum_of(RolloutSettings()) is None


@pytest.mark.parametrize(
    "given",
    [{"curriculum_target": -0.1}, {"curriculum_target": 1.1}, {"curriculum_memory": 1.0}, {"refill_rounds": -1}],
)
def test_settings_out_of_range_are_refused(given: dict[str, float]) -> None:
    [(name, value)] = given.items()
    with pytest.raises(ConfigError, match=rf"rollout\..*{name}={value}.* allowed"):
        RolloutSettings(**given)  # type: ignore[arg-type]


def tasks(n: int, kinds: str = "a") -> list[Task]:
    return [task(id=f"t{i}", kind=kinds[i % len(kinds)]) for i in range(n)]


def test_tasks_of_middling_difficulty_come_most() -> None:
    rates = {f"t{i}": (0.0, 0.5, 1.0)[i // 10] for i in range(30)} | {"t29": 0.5}
    order = TaskOrder(tasks(30), tasks_per_step=4, seed=0, curriculum=Curriculum())
    drawn = Counter(t.id for step in range(300) for t in order.take(step, rates))
    of = {rate: sum(n for i, n in drawn.items() if rates[i] == rate) for rate in (0.0, 0.5, 1.0)}
    assert of[0.5] > 10 * (of[0.0] + of[1.0]) / 2
    assert min(drawn[f"t{i}"] for i in range(30)) > 0  # what is mastered or hopeless comes back too
    even = Counter(t.id for step in range(300) for t in order.take(step, {}))
    assert max(even.values()) < 3 * min(even.values())


def test_a_draw_depends_on_seed_step_and_rates_alone() -> None:
    def drawn(seed: int, rates: dict[str, float]) -> list[list[str]]:
        order = TaskOrder(tasks(9), tasks_per_step=3, seed=seed, curriculum=Curriculum())
        return [[t.id for t in order.take(step, rates)] for step in (4, 0, 4)]

    rates = {f"t{i}": i / 8 for i in range(9)}
    [fourth, first, again] = drawn(0, rates)
    assert fourth == again != first
    assert drawn(0, rates) == drawn(0, dict(reversed(rates.items())))
    assert drawn(0, rates) != drawn(1, rates)
    assert drawn(0, rates) != drawn(0, {})
    assert all(len(set(step)) == 3 for step in drawn(0, rates))


def test_the_draw_never_changes_between_versions() -> None:
    order = TaskOrder(tasks(9), tasks_per_step=4, seed=3, curriculum=Curriculum())
    assert [t.id for t in order.take(2, {"t1": 1.0, "t2": 0.5})] == ["t0", "t6", "t8", "t5"]


def test_a_curriculum_keeps_the_shares_of_the_strata() -> None:
    rates = {f"t{i}": float(i % 4 == 0) / 2 for i in range(40)}
    order = TaskOrder(tasks(40, "abcd"), tasks_per_step=8, seed=3, stratify_by="kind", curriculum=Curriculum())
    for step in range(20):
        assert Counter(t.metadata["kind"] for t in order.take(step, rates)) == {"a": 2, "b": 2, "c": 2, "d": 2}
