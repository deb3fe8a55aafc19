"""Guards: named limits on a step's metrics, each with an action for a value beyond the limit.

    guards.kl  {metric: policy/kl, when: above, limit: 1.0, patience: 1, action: warn}

A guard judges its metric as soon as the step has measured it: tags of the rollout (reward/*, agent/*, response_len/*,
...) and of the dev evaluation before the update, tags of an optimizer step (gradients/norm, policy/*) right before that
step, any other tag at the end. Actions other than warn thus take effect before the weights change, except a halt on a
tag known only at the end:

    warn      a line, when the warning begins
    skip      the step makes no update
    rollback  weights and optimizer go back to the last good checkpoint, the run goes on with the next step
    halt      the run ends with exit code 6 at its last whole step, resumable

Guard state changes only with a finished step: an unfinished step leaves no trace in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal, NamedTuple

from agentgrpo.core.errors import ConfigError, GuardHalt, GuardRollback, TrainingError

WINDOW = 20
"""Steps in a guard's running mean: the last ones within its limit."""
LEAST = 5
"""Least number of steps in a mean that values are compared with."""
NOT_WITHOUT_AN_OPTIMIZER_STEP = ("loss", "gradients/norm")
"""Tags that are 0 for an update without an optimizer step, which is no measurement."""
NOT_IN_EVERY_STEP = ("start/", "policy/", "failures/", "dev/", *NOT_WITHOUT_AN_OPTIMIZER_STEP)
"""Prefixes of tags that may be missing in a step without being misspelt."""
REFUSALS = {"halt": GuardHalt, "rollback": GuardRollback, "skip": TrainingError}
"""action -> the exception that it raises, strongest first."""
ACTIONS = ("warn", *REFUSALS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One entry of the `guards` group.

    falls_to and rises_to are for positive quantities: `limit` is then a share of the metric's running mean (over its
    last WINDOW steps within the limit, LEAST at least), so a sudden change fires and a slow one does not. A value that
    is not finite is beyond every limit.
    """

    metric: str
    """A tag of metrics.jsonl."""
    when: Literal["above", "below", "falls_to", "rises_to"]
    limit: float
    patience: int = 1
    """Consecutive steps that must be beyond the limit; steps without the metric do not count."""
    action: Literal["warn", "skip", "rollback", "halt"] = "warn"
    hint: str = ""
    """Advice that ends the message."""

    def __post_init__(self) -> None:
        allowed = {"falls_to": "a share of the mean, between 0 and 1", "rises_to": "a multiple of the mean, above 1"}
        ok = 0 < self.limit < 1 if self.when == "falls_to" else self.limit > 1 if self.when == "rises_to" else True
        if not (ok and math.isfinite(self.limit)):
            raise ConfigError(
                f"guard on {self.metric}: limit={self.limit}; {allowed.get(self.when, 'a finite number')} is allowed "
                f"with when={self.when}"
            )
        if self.patience < 1:
            raise ConfigError(f"guard on {self.metric}: patience={self.patience}; 1 step or more is allowed")

    @property
    def is_relative(self) -> bool:
        return self.when in ("falls_to", "rises_to")

    def threshold(self, values: Sequence[float]) -> float | None:
        """Return the value that the metric is compared with. values: the metric's last values within the limit. Return
        None if there are too few of them."""
        if not self.is_relative:
            return self.limit
        mean = fmean(values) if len(values) >= LEAST else 0.0
        return self.limit * mean if mean > 0 else None

    def is_beyond(self, value: float, values: Sequence[float]) -> bool:
        threshold = self.threshold(values)
        if not math.isfinite(value):
            return True
        if threshold is None:
            return False
        return value > threshold if self.when in ("above", "rises_to") else value < threshold


@dataclass(slots=True, kw_only=True)
class _Watch:
    """A guard's memory, and its metric's values in the current step."""

    name: str
    guard: Guard
    streak: int = 0
    """Consecutive steps beyond the limit, up to the last finished one."""
    values: list[float] = field(default_factory=list)
    """Means of the last finished steps within the limit; kept only if the guard compares with them."""
    seen: list[float] = field(default_factory=list)
    worst: float | None = None
    """The current step's first value beyond the limit."""

    def see(self, value: float) -> None:
        self.seen.append(value)
        if self.worst is None and self.guard.is_beyond(value, self.values):
            self.worst = value

    @property
    def fires(self) -> bool:
        return self.worst is not None and self.streak + 1 >= self.guard.patience

    @property
    def message(self) -> str:
        guard, threshold = self.guard, self.guard.threshold(self.values)
        text = f"guards.{self.name}: {guard.metric} is {self.worst:.3g}"
        if threshold is not None:
            text += f", {'above' if guard.when in ('above', 'rises_to') else 'below'} {threshold:.3g}"
        if threshold is not None and guard.is_relative:
            text += f" ({guard.limit:g} times its mean over the last {len(self.values)} steps within it)"
        return (
            text + (f" for {self.streak + 1} steps" if self.streak else "") + (f": {guard.hint}" if guard.hint else "")
        )

    def commit(self) -> None:
        """Update the memory at the end of a step."""
        if self.worst is not None:
            self.streak += 1
        elif self.seen:
            self.streak = 0
            if self.guard.is_relative:
                self.values = [*self.values, fmean(self.seen)][-WINDOW:]
        self.seen, self.worst = [], None


class Closed(NamedTuple):
    """The guards' verdict at the end of a step."""

    lines: list[str]
    """A line for each new warning."""
    tags: dict[str, float]
    """guard/fired, the number of guards that fired, and guard/fired/<name> for each; empty if none fired."""
    halt: GuardHalt | None
    """Raised once the step is recorded."""


class Guards:
    """The guards of a run: call `look` whenever a step has measured something, and `close` when it is done. If the run
    ends during a step, before its `close`, the resumed run judges that step anew. Raises ConfigError for a rollback
    guard in a run without checkpoints."""

    def __init__(self, guards: Mapping[str, Guard], *, has_checkpoints: bool) -> None:
        for name, guard in guards.items():
            if guard.action == "rollback" and not has_checkpoints:
                raise ConfigError(
                    f"guards.{name}.action=rollback needs a checkpoint to go back to, but run.checkpoint_every=0 saves "
                    "none; set it, such as run.checkpoint_every=25, or choose another action"
                )
        self._watches = [_Watch(name=name, guard=guard) for name, guard in guards.items()]
        self._seen: dict[str, float] = {}
        self._rolls_back = False
        self._named = False

    @property
    def seen(self) -> dict[str, float]:
        """Every tag passed to `look` in the current step."""
        return dict(self._seen)

    @property
    def can_roll_back(self) -> bool:
        return any(w.guard.action == "rollback" for w in self._watches)

    @property
    def is_calm(self) -> bool:
        """Whether every rollback guard was within its limit when the last step was closed."""
        return not any(w.guard.action == "rollback" and w.streak for w in self._watches)

    def look(self, step: int, tags: Mapping[str, float]) -> None:
        """Judge the step's metrics so far, before weights change. Raises the exception of the strongest guard that
        fires: GuardHalt, GuardRollback, or TrainingError to skip the step."""
        self._seen |= tags
        for watch in self._watches:
            if watch.guard.metric in tags:
                watch.see(tags[watch.guard.metric])
        for action, refusal in REFUSALS.items():
            if firing := self._firing(action):
                self._rolls_back = action == "rollback"
                raise refusal(_refusal(step, firing))

    def close(self, step: int, tags: Mapping[str, float]) -> Closed:
        """Judge the metrics that no `look` has shown, with `tags` as the step's final row, and commit the step. Raises
        ConfigError for a skip or rollback guard on a metric that is known only after the update."""
        for watch in self._watches:
            guard = watch.guard
            if watch.seen or guard.metric not in tags or guard.metric in NOT_WITHOUT_AN_OPTIMIZER_STEP:
                continue
            if guard.action in ("skip", "rollback"):
                raise ConfigError(
                    f"guards.{watch.name}.action={guard.action}: {guard.metric} is known only after the update; warn "
                    "and halt are allowed for it"
                )
            watch.see(tags[guard.metric])
        lines = [f"step {step}: {w.message}" for w in self._firing("warn") if w.streak + 1 == w.guard.patience]
        halting, fired = self._firing("halt"), self._firing(*ACTIONS)
        closed = Closed(
            lines=[*self._unmeasured(step, tags), *lines],
            tags={"guard/fired": float(len(fired))} | {f"guard/fired/{w.name}": 1.0 for w in fired} if fired else {},
            halt=GuardHalt(_refusal(step, halting)) if halting else None,
        )
        for watch in self._watches:
            watch.commit()
            if self._rolls_back:  # the weights are others now, so every streak ends
                watch.streak = 0
        self._seen, self._rolls_back = {}, False
        return closed

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as plain JSON."""
        return {w.name: {"metric": w.guard.metric, "streak": w.streak, "values": list(w.values)} for w in self._watches}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; a guard that is new, or now watches another metric, starts afresh."""
        for watch in self._watches:
            saved = state.get(watch.name, {})
            if saved.get("metric") == watch.guard.metric:
                watch.streak, watch.values = saved["streak"], list(saved["values"])

    def _firing(self, *actions: str) -> list[_Watch]:
        return [w for w in self._watches if w.fires and w.guard.action in actions]

    def _unmeasured(self, step: int, tags: Mapping[str, float]) -> list[str]:
        """Return a line for every guard whose metric was not measured, once: a misspelt one would never fire."""
        if self._named or "skipped" in tags:
            return []
        self._named = True
        idle = [w for w in self._watches if not w.seen and not w.guard.metric.startswith(NOT_IN_EVERY_STEP)]
        return [f"note: guards.{w.name} watches {w.guard.metric}, which step {step} has not measured" for w in idle]


def _refusal(step: int, firing: Sequence[_Watch]) -> str:
    text = f"step {step}: {'; '.join(w.message for w in firing)}"
    names = " ".join(f"guards.{w.name}.action=warn" for w in firing)
    halts = firing[0].guard.action == "halt"
    return f"{text}. The run halts here; to go on all the same, resume it with {names}" if halts else text
