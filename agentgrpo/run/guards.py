"""Guards: named limits on what a step measures, and what happens where one is passed.

    guards.kl  {metric: policy/kl, when: above, limit: 1.0, patience: 1, action: warn}

A guard judges its metric as soon as the step has it: a tag of the rollout (reward/*, agent/*, response_len/*, ...) or
of the dev evaluation before the update, a tag of an optimizer step (gradients/norm, policy/*) right before that step,
any other at the end. So what does more than warn acts before the weights change:

    warn      a line, when it begins
    skip      the step makes no update
    rollback  weights and optimizer go back to the last good checkpoint, the run goes on with the next step
    halt      the run ends with exit code 6 at its last whole step, resumable

What counts is kept per step: a step that is begun and not finished leaves no trace in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal, NamedTuple

from agentgrpo.core.errors import ConfigError, GuardHalt, GuardRollback, TrainingError

WINDOW = 20
"""Steps that a guard's running mean is of: the last ones that were within its limit."""
LEAST = 5
"""A mean of fewer steps is compared with nothing."""
NOT_WITHOUT_AN_OPTIMIZER_STEP = ("loss", "gradients/norm")
"""Tags that say 0 for an update that took no optimizer step, which is no measurement."""
NOT_IN_EVERY_STEP = ("start/", "policy/", "failures/", "dev/", *NOT_WITHOUT_AN_OPTIMIZER_STEP)
"""Tags that begin like this may be missing in a step without being misspelt."""
REFUSALS = {"halt": GuardHalt, "rollback": GuardRollback, "skip": TrainingError}
"""action -> what it is raised as, the strongest first."""
ACTIONS = ("warn", *REFUSALS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One entry of the `guards` group.

    falls_to and rises_to are for positive quantities: `limit` is then a share of the metric's own running mean (of its
    last WINDOW steps within the limit, LEAST at least), so that a sudden change rings and a slow one does not. A value
    that is not finite is beyond every limit.
    """

    metric: str
    """A tag of metrics.jsonl."""
    when: Literal["above", "below", "falls_to", "rises_to"]
    limit: float
    patience: int = 1
    """Steps in a row that must be beyond the limit; those without the metric do not count."""
    action: Literal["warn", "skip", "rollback", "halt"] = "warn"
    hint: str = ""
    """What to do about it; ends the message."""

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
        """What the metric is compared with, `values` being its last ones within the limit; None where there is too
        little to compare with."""
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
    """A guard's memory, and what it has seen of the step under way."""

    name: str
    guard: Guard
    streak: int = 0
    """Steps in a row beyond the limit, up to the last finished one."""
    values: list[float] = field(default_factory=list)
    """Of the last finished steps within the limit; only where the guard compares with their mean."""
    seen: list[float] = field(default_factory=list)
    worst: float | None = None
    """The first value of the step beyond the limit."""

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
        """The step is finished."""
        if self.worst is not None:
            self.streak += 1
        elif self.seen:
            self.streak = 0
            if self.guard.is_relative:
                self.values = [*self.values, fmean(self.seen)][-WINDOW:]
        self.seen, self.worst = [], None


class Closed(NamedTuple):
    """What the guards say at the end of a step."""

    lines: list[str]
    """One for every warning that begins."""
    tags: dict[str, float]
    """guard/fired, how many guards did, and guard/fired/<name> of each; nothing where none did."""
    halt: GuardHalt | None
    """To be raised once the step is recorded."""


class Guards:
    """All guards of a run: `look` whenever a step has measured something, `close` when it is done. A step that ends
    the run before its `close` has not been, and is judged anew by the run that is resumed. Raises ConfigError for a
    guard that rolls back in a run without checkpoints."""

    def __init__(self, guards: Mapping[str, Guard], *, has_checkpoints: bool) -> None:
        for name, guard in guards.items():
            if guard.action == "rollback" and not has_checkpoints:
                raise ConfigError(
                    f"guards.{name}.action=rollback needs a checkpoint to go back to, and run.checkpoint_every=0 makes "
                    "none; set it, such as run.checkpoint_every=25, or choose another action"
                )
        self._watches = [_Watch(name=name, guard=guard) for name, guard in guards.items()]
        self._seen: dict[str, float] = {}
        self._rolls_back = False
        self._named = False

    @property
    def seen(self) -> dict[str, float]:
        """Every tag that the step under way was looked at with."""
        return dict(self._seen)

    @property
    def can_roll_back(self) -> bool:
        return any(w.guard.action == "rollback" for w in self._watches)

    @property
    def is_calm(self) -> bool:
        """No guard that rolls back was beyond its limit when the last step was closed."""
        return not any(w.guard.action == "rollback" and w.streak for w in self._watches)

    def look(self, step: int, tags: Mapping[str, float]) -> None:
        """Judge what the step has measured so far, before weights change. Raises what the strongest of the guards that
        fire asks for: GuardHalt, GuardRollback, or TrainingError for a step to be skipped."""
        self._seen |= tags
        for watch in self._watches:
            if watch.guard.metric in tags:
                watch.see(tags[watch.guard.metric])
        for action, refusal in REFUSALS.items():
            if firing := self._firing(action):
                self._rolls_back = action == "rollback"
                raise refusal(_refusal(step, firing))

    def close(self, step: int, tags: Mapping[str, float]) -> Closed:
        """The step is done and `tags` will be its row: judge what no `look` has shown, and remember the step. Raises
        ConfigError for a guard that was to act before the update on what is known only after it."""
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
            if self._rolls_back:  # other weights: nothing is in a row any more
                watch.streak = 0
        self._seen, self._rolls_back = {}, False
        return closed

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as plain JSON."""
        return {w.name: {"metric": w.guard.metric, "streak": w.streak, "values": list(w.values)} for w in self._watches}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; a guard that is new, or watches another metric now, begins anew."""
        for watch in self._watches:
            saved = state.get(watch.name, {})
            if saved.get("metric") == watch.guard.metric:
                watch.streak, watch.values = saved["streak"], list(saved["values"])

    def _firing(self, *actions: str) -> list[_Watch]:
        return [w for w in self._watches if w.fires and w.guard.action in actions]

    def _unmeasured(self, step: int, tags: Mapping[str, float]) -> list[str]:
        """A line for every guard without a metric, once: a misspelt one would never fire."""
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
