"""Curriculum by measured difficulty: tasks that are sometimes answered rightly come more often than those that always
or never are, because only they tell good attempts from bad ones.

    rate(task)   <- memory * rate + (1 - memory) * mean correctness of its latest group; that mean itself at first
    weight(task)  = FLOOR + (1 - FLOOR) * (1 - |rate - target| / max(target, 1 - target));  1 without a rate

A step's tasks are drawn with these weights, none twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from agentgrpo.settings import RolloutSettings
from agentgrpo.types import ScoredGroup

FLOOR = 0.05
"""Weight of a task as far from the target as can be: what is mastered or hopeless is looked at again now and then."""

Rates = Mapping[str, float]
"""Task id -> mean correctness as far as it was measured. Tasks that were never tried have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curriculum:
    """target: the rate that weighs most, in [0, 1]. memory: weight of the rate so far in a new one, in [0, 1)."""

    target: float = 0.5
    memory: float = 0.5

    def weight(self, rate: float | None) -> float:
        """Above 0, at most 1. A task that was never tried weighs as much as any: it may be right."""
        if rate is None:
            return 1.0
        return FLOOR + (1 - FLOOR) * (1 - abs(rate - self.target) / max(self.target, 1 - self.target))

    def observe(self, rates: Rates, scored: Iterable[ScoredGroup]) -> dict[str, float]:
        """`rates` after these groups. Episodes that could not be scored say nothing."""
        after = dict(rates)
        for group in scored:
            grades = [r.correctness for r in group.rewards if r is not None]
            if grades:
                task, mean = group.group.task.id, fmean(grades)
                after[task] = self.memory * after[task] + (1 - self.memory) * mean if task in after else mean
        return after


def curriculum_of(settings: RolloutSettings) -> Curriculum | None:
    """The one that the group `rollout` asks for; None = all tasks in turn."""
    if settings.curriculum == "none":
        return None
    return Curriculum(target=settings.curriculum_target, memory=settings.curriculum_memory)
