"""How a user's reward function is called: the shape of its arguments, and the extra arguments that TRL passes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from statistics import fmean
from typing import Any

from agentgrpo.core.errors import BadValue
from agentgrpo.core.messages import MAX_REASON, content_of
from agentgrpo.core.numbers import named, number
from agentgrpo.core.types import Episode

SHAPES = (
    "a reward function takes (episode); names of one attempt, such as verl's (data_source, solution_str, ground_truth, "
    "extra_info=None) or (prompt, completion, answer); or lists of a group, as TRL's (prompts, completions, **columns)"
)
_IDS = "completion_ids"
ATTEMPT = frozenset({"completion", "solution_str", _IDS})
GROUP = frozenset({"prompts", "completions", _IDS, "environments", "log_extra", "log_metric", "trainer_state"})
"""Names of arguments for one attempt, and for a group of attempts, beside the columns of the task."""


class Calling(StrEnum):
    EPISODE = "episode"
    ATTEMPT = "attempt"
    GROUP = "group"


def shape_of(signature: inspect.Signature) -> Calling | None:
    """The shape in which the function is called; None if no shape fits."""
    parameters = signature.parameters.values()
    kinds = {p.kind for p in parameters}
    takes_more, takes_all = inspect.Parameter.VAR_POSITIONAL in kinds, inspect.Parameter.VAR_KEYWORD in kinds
    arguments = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    names = {p.name for p in arguments}
    if not arguments:  # with *args and **kwargs: a wrapper that hides the names of its function
        return None if takes_more == takes_all else Calling.GROUP if takes_all else Calling.EPISODE
    if names & (ATTEMPT - {_IDS}):
        return Calling.ATTEMPT
    first = arguments[0]
    is_episode = first.name == "episode" or first.annotation in (Episode, Episode.__name__)
    if not is_episode and (takes_all or names & (GROUP - {"prompts"})):  # also OpenRLHF's
        return Calling.GROUP
    is_alone = sum(p.default is p.empty for p in arguments) <= 1
    return Calling.EPISODE if is_alone and first.annotation not in (str, "str") else None


class Handed:
    """The extra arguments that TRL passes to a function for one call. log_metric(name, number) and log_extra(column, a
    value for each attempt) record numbers as parts of the term, and texts as its reason. `environments` have their
    measurements as attributes, such as `reward`. `trainer_state.global_step` is the number of updates so far."""

    def __init__(self, episodes: Sequence[Episode], where: str) -> None:
        versions = [turn.policy_version for episode in episodes for turn in episode.turns]
        self._count, self._where = len(episodes), where
        self._metrics: dict[str, list[float]] = {}
        self._columns: dict[str, list[Any]] = {}
        left = "an environment is closed by then; let get_reward() return it by name"
        self.arguments: Mapping[str, Any] = {
            "environments": [_Known(f"{where}: environments[{i}]", e.metrics, left) for i, e in enumerate(episodes)],
            "trainer_state": _Known(
                f"{where}: trainer_state",
                {"global_step": max((v for v in versions if v is not None), default=0)},
                "a reward is the same at every step but for that",
            ),
            "log_metric": self._log_metric,
            "log_extra": self._log_extra,
        }

    def parts(self) -> list[dict[str, float]]:
        """The recorded numbers of each attempt; a metric is the mean of its logged values. Raises BadValue."""
        means = {name: fmean(values) for name, values in self._metrics.items()}
        return [named({**means, **row}, self._where, number) for row in self._rows(numbers_in)]

    def reasons(self) -> list[str]:
        return [reason_of(row) for row in self._rows(texts_in)]

    def _rows(self, pick: Callable[[Mapping[str, Any]], dict[str, Any]]) -> list[dict[str, Any]]:
        for column, values in self._columns.items():
            if len(values) != self._count:
                raise BadValue(
                    f"{self._where}: log_extra('{column}') got {len(values)} values for {self._count} completions; one "
                    "for each is needed"
                )
        return [pick({column: values[i] for column, values in self._columns.items()}) for i in range(self._count)]

    def _log_metric(self, name: str, value: float) -> None:
        self._metrics.setdefault(name, []).append(number(value, f"{self._where}: log_metric('{name}')"))

    def _log_extra(self, column: str, values: Sequence[Any]) -> None:
        self._columns.setdefault(column, []).extend(values)


class _Known:
    """An object with these attributes. Any other attribute raises an error that lists them, even under getattr with a
    default."""

    def __init__(self, what: str, values: Mapping[str, float], remedy: str) -> None:
        self._what, self._values, self._remedy = what, values, remedy

    def __getattr__(self, name: str) -> float:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._values:
            raise BadValue(f"{self._what} has {', '.join(self._values) or 'nothing'}, and no {name}: {self._remedy}")
        return self._values[name]


def numbers_in(values: Mapping[Any, Any]) -> dict[Any, Any]:
    return {name: value for name, value in values.items() if isinstance(value, int | float) or hasattr(value, "item")}


def texts_in(values: Mapping[Any, Any]) -> dict[str, str]:
    """The values that are not numbers, as texts; empty texts are left out."""
    texts = {str(name): content_of(value) for name, value in values.items() if name not in numbers_in(values)}
    return {name: text for name, text in texts.items() if text}


def reason_of(texts: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {text}" for name, text in texts.items())[:MAX_REASON]
