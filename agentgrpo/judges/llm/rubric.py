"""The rubric of a judge model: a text, weighted criteria, or both; from the judge's settings or from a task."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgrpo.core.errors import AgentGrpoError, DataError
from agentgrpo.core.types import Task

RUBRIC = "rubric"
"""Key of a task's metadata. Its value is a text, {name: criterion}, or a list of criteria; a criterion is a text, or
{"criterion": text, "weight": number}."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
_TAKEN = frozenset({"reason", "nonce"})


@dataclass(frozen=True, slots=True)
class Criterion:
    name: str
    text: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Rubric:
    """text: "" = grade how right the answer is. Without criteria the verdict has one grade."""

    text: str = ""
    criteria: tuple[Criterion, ...] = ()

    @property
    def asked(self) -> tuple[tuple[str, str], ...]:
        return tuple((criterion.name, criterion.text) for criterion in self.criteria)

    @property
    def in_words(self) -> str:
        """The rubric as one text, criteria included; used when the judge gives a single grade."""
        if not self.criteria:
            return self.text
        lines = [f"- {c.text}{'' if c.weight == 1 else f' (weight {c.weight:g})'}" for c in self.criteria]
        return "\n".join([*([self.text] if self.text else []), *lines])

    def mean(self, scores: Sequence[float]) -> float:
        """The grade of a verdict: the weighted mean of the criteria's grades, or the single grade."""
        if not self.criteria:
            return scores[0]
        total = math.fsum(c.weight for c in self.criteria)
        return math.fsum(c.weight * s for c, s in zip(self.criteria, scores, strict=True)) / total

    def by_name(self, scores: Sequence[float]) -> dict[str, float]:
        return {c.name: s for c, s in zip(self.criteria, scores, strict=True)} if self.criteria else {}


def rubric_of(task: Task, default: Rubric) -> Rubric:
    """The task's own rubric if it has one, else `default`. Raises DataError."""
    own = task.metadata.get(RUBRIC)
    if own is None:
        return default
    if isinstance(own, str):
        return Rubric(own.strip())
    return Rubric(default.text, criteria_of(own, f"task {task.id}: metadata.{RUBRIC}", DataError))


def criteria_of(given: Any, where: str, error: type[AgentGrpoError]) -> tuple[Criterion, ...]:
    """Parse a mapping of criteria by name, or a list, whose criteria are named c1, c2, ... Raises `error`."""
    if isinstance(given, Mapping):
        named = {str(name): one for name, one in given.items()}
    elif isinstance(given, list | tuple):
        named = {f"c{i}": one for i, one in enumerate(given, start=1)}
    else:
        raise error(f"{where} is a {type(given).__name__}; criteria are {{name: text}} or a list")
    found = tuple(_criterion(name, one, where, error) for name, one in named.items())
    if found and not sum(c.weight for c in found) > 0:
        raise error(f"{where}: all weights are 0; give one criterion a weight above 0")
    return found


def _criterion(name: str, one: Any, where: str, error: type[AgentGrpoError]) -> Criterion:
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise error(
            f"{where}: {name!r} is not a valid name; allowed are lower-case letters, digits and _, but not 'reason'"
        )
    row = {"criterion": one} if isinstance(one, str) else one
    if not isinstance(row, Mapping) or not {"criterion"} <= row.keys() <= {"criterion", "weight"}:
        raise error(f"{where}.{name} is {str(one)[:60]!r}; a text is needed, or {{criterion: text, weight: number}}")
    text, weight = row["criterion"], row.get("weight", 1.0)
    if not isinstance(text, str) or not text.strip():
        raise error(f"{where}.{name}: its criterion is not a text")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not (math.isfinite(weight) and weight >= 0):
        raise error(f"{where}.{name}: weight {weight!r}; a number of 0 or more is allowed")
    return Criterion(name, text.strip(), float(weight))
