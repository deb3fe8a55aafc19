"""The engine's actual schedule in a rollout, and its time by stage."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from measure import Now
from ours import ScriptedHFEngine
from torch import Tensor

from agentgrpo.engines.schedule import EngineTurn, Step


@dataclass(frozen=True)
class EngineStep:
    """One forward pass: number of keys that each decoding row attends to, and the prefill spans as (tokens, start)."""

    keys: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    drawn: int
    """Rows whose logits are computed."""

    @property
    def tokens(self) -> int:
        return len(self.keys) + sum(tokens for tokens, _ in self.spans)

    @property
    def attended(self) -> int:
        """Pairs of a query and a key that it attends to."""
        return sum(self.keys) + sum(n * start + n * (n + 1) // 2 for n, start in self.spans)

    @property
    def keys_read(self) -> int:
        """Cached keys that must be read at least once."""
        return sum(self.keys) + sum(n + start for n, start in self.spans)


@dataclass(frozen=True)
class Spans:
    """Prefill spans of one kind, averaged to one call: `rows` spans of `tokens` tokens after `start` cached ones."""

    rows: int
    tokens: int
    start: int
    total: int
    """Sum of tokens over the spans."""


@dataclass
class Schedule:
    """A rollout's engine steps in order."""

    steps: list[EngineStep] = field(default_factory=list)

    @property
    def decode_steps(self) -> int:
        return sum(bool(s.keys) for s in self.steps)

    @property
    def rows(self) -> int:
        """Mean decoding rows of a decode step."""
        return round(fmean(len(s.keys) for s in self.steps if s.keys))

    @property
    def keys(self) -> int:
        """Mean keys that a decoding row attends to."""
        return round(fmean(k for s in self.steps for k in s.keys))

    def spans(self, *, opening: bool) -> Spans | None:
        """Prefill spans of the prompts (opening) or of text injected later; None without spans."""
        per_step = [[(n, start) for n, start in s.spans if (start == 0) == opening] for s in self.steps]
        per_step = [spans for spans in per_step if spans]
        every = [span for spans in per_step for span in spans]
        if not every:
            return None
        return Spans(
            rows=max(1, round(fmean(map(len, per_step)))),
            tokens=round(fmean(n for n, _ in every)),
            start=round(fmean(start for _, start in every)),
            total=sum(n for n, _ in every),
        )


class ObservedEngine(ScriptedHFEngine):
    """Records its schedule and its seconds by stage; `begin` resets both. Forwards replayed from a CUDA graph are part
    of "compute" only."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.begin(time.process_time)
        self._began = 0.0
        self._model.register_forward_pre_hook(self._forward_begins)
        self._model.register_forward_hook(self._forward_ends)

    def begin(self, now: Now) -> None:
        self._now, self.schedule = now, Schedule()
        self.seconds = {"forward": 0.0, "drawing": 0.0, "script": 0.0, "compute": 0.0}

    def _compute(self, step: Step) -> tuple[list[int], list[float]]:
        began = self._now()
        single = [unit for unit in step.units if unit.stop - unit.start == 1]
        self.schedule.steps.append(
            EngineStep(
                keys=tuple(unit.stop for unit in single),
                spans=tuple((u.stop - u.start, u.start) for u in step.units if u.stop - u.start > 1),
                drawn=len(step.drawing),
            )
        )
        computed = super()._compute(step)
        self.seconds["compute"] += self._now() - began
        return computed

    def _draw(self, logits: Tensor, turns: Sequence[EngineTurn]) -> tuple[list[int], list[float]]:
        began, script = self._now(), self.seconds["script"]
        drawn = super()._draw(logits, turns)
        self.seconds["drawing"] += self._now() - began - (self.seconds["script"] - script)
        return drawn

    def _forced(self, logits: Tensor, turns: Sequence[EngineTurn]) -> Tensor:
        began = self._now()
        forced = super()._forced(logits, turns)
        self.seconds["script"] += self._now() - began
        return forced

    def _forward_begins(self, *_: Any) -> None:
        if not self._captures():
            self._began = self._now()

    def _forward_ends(self, *_: Any) -> None:
        if not self._captures():
            self.seconds["forward"] += self._now() - self._began

    def _captures(self) -> bool:
        """Whether a CUDA graph is being captured: the clock must not synchronize with the device then."""
        return self._shape.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
