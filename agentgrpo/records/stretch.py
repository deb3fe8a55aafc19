"""A stretch of a run's work as a screen knows it: how far it is, what it measures, what went wrong."""

from __future__ import annotations

import unicodedata
from collections import deque
from collections.abc import Callable, Mapping
from statistics import fmean

from agentgrpo.records.frame import ProgressLine, Spelled
from agentgrpo.records.pace import Pace, clock

OUTCOME: Mapping[str, str] = {"reward/mean": "reward", "correctness": "correct"}
LEARNING: Mapping[str, str] = {
    "policy/kl": "kl",
    "gradients/norm": "grad norm",
    "tokens/sampled": "tokens",
    "dev/reward": "dev reward",
    "time/profile/total": "step s",
    "time/profile/generation": "generation s",
    "time/profile/tools": "tools s",
    "time/profile/forward": "forward s",
    "time/profile/backward": "backward s",
}
"""Tag -> its name on the screen, in order; what the agent does (Screen.show) stands between the two. A stage that logs
none of them shows its first MAX_OTHER tags."""
MAX_OTHER = 8
TREND_STEPS = 5
"""Steps that `start` and `now` are the mean of."""

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def sanitize(text: str) -> str:
    """`text` as it may reach a terminal: without control characters other than newline and tab (C0, DEL, C1), without
    bidirectional controls, line and paragraph separators, and lone surrogates."""
    return "".join(
        c for c in text if c in "\n\t" or (unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp") and c not in _BIDI)
    )


def number(value: float) -> str:
    if value and abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3f}"


class _Trend:
    """A metric's first and latest values."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=TREND_STEPS)

    def add(self, value: float) -> None:
        if len(self._first) < TREND_STEPS:
            self._first.append(value)
        self._last.append(value)

    def cells(self) -> tuple[str, str, str]:
        """now, start and the change between them."""
        now, start = fmean(self._last), fmean(self._first)
        change = now - start
        return number(now), number(start), ("+" if change > 0 else "") + number(change)


class Stretch:
    """A stretch of work with its own counts and metrics."""

    def __init__(self, title: str, now: Callable[[], float]) -> None:
        self.title, self.now = title, now
        self.pace = Pace(now=now)
        self.begin(None)
        self.trends: dict[str, _Trend] = {}
        self.num_skipped = 0
        self.num_failures = 0

    def begin(self, total: int | None) -> None:
        self.total: int | None = total
        self.done, self.began = 0, self.now()
        self.pace.begin()

    def advance(self, n: int) -> None:
        self.done += n
        self.pace.reached(self.done)

    def add(self, tags: Mapping[str, float]) -> None:
        self.num_skipped += int(tags.get("skipped", 0))
        self.num_failures += int(sum(v for tag, v in tags.items() if tag.startswith("failures/")))
        for tag, value in tags.items():
            self.trends.setdefault(tag, _Trend()).add(value)

    def shown(self, of_agent: Mapping[str, str]) -> dict[str, str]:
        """Tag -> name of the metrics on the screen."""
        key = {tag: name for tag, name in {**OUTCOME, **of_agent, **LEARNING}.items() if tag in self.trends}
        return key or {tag: sanitize(tag) for tag in list(self.trends)[:MAX_OTHER]}

    def counted(self) -> str:
        return f"{self.done:,}" if self.total is None else f"{self.done:,}/{self.total:,}"

    def left(self) -> str:
        """ "1:05 left"; "" where it is done, or nothing is known yet."""
        units = 0 if self.total is None else self.total - self.done
        seconds = self.pace.left(units) if units > 0 else None
        return "" if seconds is None else f"{clock(seconds)} left"

    def incidents(self) -> list[str]:
        counts = {"skipped": self.num_skipped, "failures": self.num_failures}
        return [f"{name} {count}" for name, count in counts.items() if count]

    def progress(self) -> ProgressLine:
        counted, took = self.counted(), ""
        if self.total is not None and self.done >= self.total:
            took = f"in {clock(self.now() - self.began)}"

        def ways() -> list[Spelled]:
            time = took or self.left()
            return [*([Spelled(self.title, f"{counted} {time}")] if time else []), Spelled(self.title, counted)]

        return ProgressLine(ways=ways, done=self.done, total=self.total)
