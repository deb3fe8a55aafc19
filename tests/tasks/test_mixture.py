"""Every step holds each source's share."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import ceil, floor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Task
from agentgrpo.tasks.mixture import MixedOrder, Mixture
from agentgrpo.tasks.order import Curriculum, TaskOrder
from tests.builders import task


def tasks(**sizes: int) -> list[Task]:
    return [task(id=f"{source}:{i}", kind="ab"[i % 2]) for source, n in sizes.items() for i in range(n)]


def order(of: list[Task], per_step: int, seed: int = 0, *, weights: dict[str, float], **more: Any) -> TaskOrder:
    return TaskOrder(of, tasks_per_step=per_step, seed=seed, mixture=Mixture(weights=weights), **more)


def shares(taken: list[Task]) -> Counter[str]:
    return Counter(task.id.partition(":")[0] for task in taken)


def test_every_batch_is_exact_where_it_can_be() -> None:
    mixed = order(tasks(a=10, b=40), 8, weights={"a": 3, "b": 1})
    for step in range(30):
        assert shares(mixed.take(step)) == {"a": 6, "b": 2}
        assert len({t.id for t in mixed.take(step)}) == 8


def test_where_it_cannot_the_steps_before_are_made_up_for() -> None:
    mixed = order(tasks(a=20, b=20), 5, weights={"a": 0.5, "b": 0.5})
    assert [shares(mixed.take(step))["a"] for step in range(6)] == [3, 2, 3, 2, 3, 2]
    rare = order(tasks(a=20, b=20), 4, weights={"a": 9, "b": 1})
    assert [shares(rare.take(step))["b"] for step in range(10)] == [0, 1, 0, 1, 0, 0, 1, 0, 1, 0]


@given(
    weights=st.lists(st.integers(0, 20), min_size=1, max_size=7).filter(any),
    per_step=st.integers(1, 12),
    steps=st.integers(1, 30),
)
@settings(deadline=None)
def test_what_was_given_is_what_is_due_rounded_down_or_up(weights: list[int], per_step: int, steps: int) -> None:
    due = {f"s{i}": Fraction(per_step * weight, sum(weights)) for i, weight in enumerate(weights)}
    most = {
        source: min(per_step, max(ceil((n + 1) * share) - floor(n * share) for n in range(share.denominator)))
        for source, share in due.items()
    }
    numbered = {source: i * 100 for i, source in enumerate(due)}

    def mixed(sizes: dict[str, int]) -> MixedOrder:
        return MixedOrder(
            sizes,
            mixture=Mixture(weights={f"s{i}": float(w) for i, w in enumerate(weights)}),
            tasks_per_step=per_step,
            permute=lambda source, epoch: range(numbered[source], numbered[source] + sizes[source]),
        )

    smallest = mixed(most)
    given: Counter[str] = Counter()
    for step in range(steps):
        taken = smallest.take(step)
        assert len({*taken}) == per_step
        given.update(f"s{i // 100}" for i in taken)
        for source, share in due.items():
            assert abs(given[source] - (step + 1) * share) < 1
    scarce = max(most, key=most.__getitem__)
    with pytest.raises(ConfigError, match=rf"{scarce} has {most[scarce] - 1} training questions, and its weight takes"):
        mixed(most | {scarce: most[scarce] - 1})


def test_two_large_sources_do_not_wait_for_many_small_ones() -> None:
    """Taking what is most overdue lets them fall 1.3 behind."""
    weights = dict(zip("abcdefghijkl", (50, 50, 50, 5, 5, 5, 2, 2, 1, 1, 1, 1), strict=True))
    mixed = order(tasks(**dict.fromkeys(weights, 200)), 2, weights={s: float(w) for s, w in weights.items()})
    given: Counter[str] = Counter()
    for step in range(173):
        given.update(shares(mixed.take(step)))
        assert max(abs(given[s] - Fraction(2 * (step + 1) * w, 173)) for s, w in weights.items()) < 1
    assert given == {s: 2 * w for s, w in weights.items()}


def test_a_source_begins_again_without_leaving_one_out() -> None:
    mixed = order(tasks(a=3, b=50), 4, weights={"a": 1, "b": 1})
    of_a = [t.id for step in range(9) for t in mixed.take(step) if t.id.startswith("a")]
    epochs = [of_a[i : i + 3] for i in range(0, 18, 3)]
    assert [sorted(epoch) for epoch in epochs] == [["a:0", "a:1", "a:2"]] * 6
    assert len({*map(tuple, epochs)}) > 1


def test_a_step_depends_on_seed_and_number_alone() -> None:
    of, weights = tasks(a=7, b=13), {"a": 2.0, "b": 1.0}
    there = [[t.id for t in order(of, 5, 3, weights=weights).take(step)] for step in range(8)]
    mixed = order(of, 5, 3, weights=weights)
    assert [[t.id for t in mixed.take(step)] for step in reversed(range(8))] == there[::-1]
    assert [[t.id for t in mixed.take(step)] for step in (4, 4, 5, 2)] == [there[i] for i in (4, 4, 5, 2)]
    assert [[t.id for t in order(of, 5, 4, weights=weights).take(step)] for step in range(8)] != there


def test_a_source_of_no_weight_is_not_trained_on() -> None:
    mixed = order(tasks(a=4, b=40), 4, weights={"a": 1, "b": 0})
    assert [shares(mixed.take(step)) for step in range(5)] == [{"a": 4}] * 5


def test_strata_within_sources() -> None:
    mixed = order(tasks(a=20, b=40), 8, weights={"a": 1, "b": 1}, stratify_by="kind")
    for step in range(5):
        of = Counter((t.id[0], t.metadata["kind"]) for t in mixed.take(step))
        assert of == {("a", "a"): 2, ("a", "b"): 2, ("b", "a"): 2, ("b", "b"): 2}


def test_a_curriculum_and_replacements_keep_the_shares() -> None:
    mixed = order(tasks(a=20, b=40), 8, weights={"a": 3, "b": 1}, curriculum=Curriculum())
    taken = mixed.take(2, {"a:1": 1.0})
    assert shares(taken) == {"a": 6, "b": 2}
    others = mixed.replace(taken[:7], step=2, round_number=1, taken={t.id for t in taken})
    assert shares(others) == shares(taken[:7])
    assert not {t.id for t in others} & {t.id for t in taken}


def test_a_source_that_is_too_small_for_its_weight() -> None:
    message = (
        r"task\.sources\.a has 3 training questions, and its weight takes up to 6 of the 8 of a step; lower its "
        r"weight or rollout\.tasks_per_step"
    )
    with pytest.raises(ConfigError, match=message):
        order(tasks(a=3, b=40), 8, weights={"a": 3, "b": 1})
