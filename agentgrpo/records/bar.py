"""How far through much work: a bar on a terminal, now and then a line elsewhere. On stderr: results can be piped."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

PLAIN_EVERY_S = 10.0
_RECENT_S = 30.0
"""The speed is that of so many seconds."""


class Bar:
    """A context manager. The units are `what` (passages); progress is counted in units or in whatever is known."""

    def __init__(self, *, what: str, console: Console | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._what, self._now, self._said = what, now, now()
        self._title = ""
        self._recent: deque[tuple[float, int, int]] = deque()
        """(time, done, position), oldest first."""
        self._progress: Progress | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20))
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._task = self._progress.add_task("")

    def __enter__(self) -> Bar:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def reached(self, title: str, done: int, position: int, total: int) -> None:
        """At `title`, `done` units are done, and `position` of `total` (bytes of a file, or units) is behind. A new
        title is a new piece of work, with a speed of its own."""
        now = self._now()
        if title != self._title:
            self._title = title
            self._recent.clear()
        self._recent.append((now, done, position))
        while len(self._recent) > 2 and self._recent[0][0] < now - _RECENT_S:
            self._recent.popleft()
        if self._progress:
            text = self._text(total)
            self._progress.update(self._task, completed=position, total=max(1, total), description=f"{title}: {text}")
        elif now - self._said >= PLAIN_EVERY_S:
            self._said = now
            self.say(f"{title}: {self._text(total)}")

    def _text(self, total: int) -> str:
        """ "120,000 passages, 34 %, 5,400 passages/s, 2:10 left"."""
        (began, before, behind), (now, done, position) = self._recent[0], self._recent[-1]
        text = f"{done:,} {self._what}, {100 * position // max(1, total)} %"
        if done > before and position > behind and now > began:
            left = round((total - position) * (now - began) / (position - behind))
            text += f", {(done - before) / (now - began):,.0f} {self._what}/s, {left // 60}:{left % 60:02} left"
        return text
