"""How far through much work: a bar on a terminal, now and then a line elsewhere. On stderr: results can be piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.text import Text

from agentgrpo.records.frame import Frame, ProgressLine, Spelled, SteadyLive
from agentgrpo.records.pace import Pace, clock

PLAIN_EVERY_S = 10.0
_BAR = 20


class Bar:
    """A context manager. The units are `what` (passages); progress is counted in units or in whatever is known."""

    def __init__(self, *, what: str, console: Console | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(stderr=True, highlight=False, force_terminal=sys.stderr.isatty())
        self._what, self._now, self._said = what, now, now()
        self._title = ""
        self._units, self._way = Pace(now=now), Pace(now=now)
        self._frame = Frame()
        self._live: SteadyLive | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = SteadyLive(lambda: self._frame, self._console, transient=True)

    def __enter__(self) -> Bar:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def reached(self, title: str, done: int, position: int, total: int) -> None:
        """At `title`, `done` units are done, and `position` of `total` (bytes of a file, or units) is behind. A new
        title is a new piece of work, with a speed of its own."""
        if title != self._title:
            self._title = title
            self._units.begin()
            self._way.begin()
        self._units.reached(done)
        self._way.reached(position)

        def ways() -> list[Spelled]:
            return [Spelled(text) for text in self._texts(done, position, total)]

        if self._live:
            self._frame = Frame(progress=ProgressLine(ways=ways, done=position, total=max(1, total), most_bar=_BAR))
        elif self._now() - self._said >= PLAIN_EVERY_S:
            self._said = self._now()
            self.say(ways()[0].left)

    def _texts(self, done: int, position: int, total: int) -> list[str]:
        """ "stored: 120,000 passages, 34 %, 5,400 passages/s, 2:10 left", and shorter ones."""
        count, share = f"{done:,} {self._what}", f"{100 * position // max(1, total)} %"
        each, left = self._units.seconds_per_unit, self._way.left(max(0, total - position))
        time = [] if left is None else [f"{clock(left)} left"]
        speed = [] if each is None or left is None else [f"{1 / each:,.0f} {self._what}/s"]
        ways = ([count, share, *speed, *time], [count, share, *time], [share, *time], [share])
        return [f"{self._title}: {', '.join(parts)}" for parts in ways] + [share]
