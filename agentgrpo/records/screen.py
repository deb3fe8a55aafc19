"""The display of a run: a live screen on a terminal, plain lines elsewhere, results in both.

Observation only: nothing here enters a metric or a file. A text may come from a model or a web page, so every text
passes `sanitize` and is never read as markup. Plain lines have no control characters. Only the progress lines of long
work have clocks; all other lines are equal in equal runs.
"""

from __future__ import annotations

import os
import sys
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from types import TracebackType
from typing import Literal

from rich.box import HEAVY_HEAD, Box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from agentgrpo.core.errors import ConfigError, did_you_mean
from agentgrpo.core.secrets import masked
from agentgrpo.records.frame import Frame, ProgressLine, Spelled, SteadyLive, Trended

# --- The speed of work and the time left, by the median of the last spans: a span that stalls (a checkpoint, a slow
# answer) counts no more than any other.

SPAN_S = 1.0
"""Minimum length of a span; a burst of answers makes one span."""
RECENT = 15


class Pace:
    """Measures the speed from the first answer on: work before it was warm-up, or was done by an earlier run."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._spans: deque[float] = deque(maxlen=RECENT)
        self.begin()

    def begin(self) -> None:
        """Start to measure other work."""
        self._position: float | None = None
        self._at = self._now()
        self._spans.clear()
        self.seconds_per_unit: float | None = None

    def reached(self, position: float) -> None:
        """Record a new position; positions only rise."""
        if self._position is None:
            self._position, self._at = position, self._now()
            return
        seconds, units = self._now() - self._at, position - self._position
        if units > 0 and seconds >= SPAN_S:
            self._spans.append(seconds / units)
            self._position, self._at = position, self._now()
            self.seconds_per_unit = median(self._spans)

    def left(self, units: float) -> float | None:
        """Seconds until `units` more are done, at least 0; None if no speed is known yet. Between two answers the value
        falls, but not below the time that would be left after the next answer."""
        each = self.seconds_per_unit
        if each is None:
            return None
        first = min(1.0, max(0.0, units))
        return max(0.0, first * each - (self._now() - self._at)) + max(0.0, units - first) * each


def clock(seconds: float) -> str:
    """ "0:09", "12:30", "1:02:03"."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


# --- A stretch of a run's work on the screen: its progress, its metrics, its failures.

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
"""Tag -> its name on the screen, in order. The agent's tags (Screen.show) come between OUTCOME and LEARNING. A stage
that logs no such tag shows its first MAX_OTHER tags."""
MAX_OTHER = 8
TREND_STEPS = 5
"""Number of steps whose mean is `start` or `now`."""

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def sanitize(text: str) -> str:
    """`text` made safe for a terminal: without control characters other than newline and tab (C0, DEL, C1), without
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
        """ "1:05 left"; "" if the work is done, or no speed is known yet."""
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


MODES = ("auto", "live", "plain", "quiet")
PLAIN_EVERY_S, PLAIN_SHARE = 10.0, 0.05
"""Silence after which a plain progress line is printed: seconds, or a share of the stage's time so far if that is
longer, so that a log of hours stays short."""


class _Console(Console):
    """Falls silent if its reader has left (`| head`): a run does not end because nobody watches."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Screen:
    """A context manager; leaving it restores the terminal, also after an exception or Ctrl-C.

    mode: `live` redraws in place; `plain` prints a line per stage, a line every `plain_every` steps, and progress lines
    from time to time; `quiet` prints only `line`, `text` and `table`; `auto` is live on a terminal, else plain. If the
    output's encoding is not Unicode, or the terminal cannot move its cursor (TERM=dumb), plain replaces live.
    Everything goes to stdout.
    """

    def __init__(
        self,
        mode: str = "auto",
        console: Console | None = None,
        *,
        plain_every: int = 10,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if mode not in MODES:
            raise ConfigError(f"screen mode '{mode}'; allowed: {', '.join(MODES)}.{did_you_mean(mode, MODES)}")
        if plain_every < 1:
            raise ConfigError(f"plain_every {plain_every}: at least 1 step between lines is allowed; correct it")
        self._console = console or _console(mode)
        moves = self._console.is_terminal and not self._console.is_dumb_terminal
        self._mode = mode if mode != "auto" else "live" if moves else "plain"
        if self._mode == "live" and (self._console.options.ascii_only or not moves):
            self._mode = "plain"
        self._plain_every = plain_every
        self._now = now
        self._said = now()
        self._of_agent: Mapping[str, str] = {}
        self._stages: dict[str, Stretch] = {}
        self._stage = Stretch("", now)
        self._trajectory = ""
        self._frame = Frame()
        self._live = SteadyLive(lambda: self._frame, self._console) if self._mode == "live" else None

    def __enter__(self) -> Screen:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Restore the terminal; harmless if it was restored before. The frame stays on the screen, without the episode;
        later output appears below it."""
        if self._live:
            self._trajectory = ""
            self._redraw()
            self._live.stop()

    def show(self, names: Mapping[str, str]) -> None:
        """Show an agent's metrics too. names: tag -> its name on the screen."""
        self._of_agent = names

    @property
    def width(self) -> int:
        """Columns of the terminal; 80 without a terminal."""
        return self._console.width

    @property
    def has_unicode(self) -> bool:
        """Whether the output is a terminal that shows Unicode."""
        return self._console.is_terminal and not self._console.options.ascii_only

    def stage(self, title: str, total: int | None) -> None:
        """Begin the stage `title` with `total` units of work (None = unknown), all of them to do. A stage that comes
        back keeps its metrics."""
        stage = self._stage = self._stages.setdefault(title, Stretch(self._clean(title), self._now))
        stage.begin(total)
        if self._mode == "plain":
            self._print(Text(f"{stage.title}: {total:,} to do" if total is not None else stage.title))
        self._redraw()

    def advance(self, n: int = 1) -> None:
        """Count n more units as done."""
        stage = self._stage
        stage.advance(n)
        self._redraw()
        silent_s, so_far_s = self._now() - self._said, self._now() - stage.began
        if self._mode == "plain" and silent_s >= max(PLAIN_EVERY_S, PLAIN_SHARE * so_far_s):
            share = "" if not stage.total else f"{100 * stage.done // stage.total} %"
            self._print(Text(", ".join(filter(None, [f"{stage.title}: {stage.counted()}", share, stage.left()]))))

    def metrics(self, step: int, tags: Mapping[str, float]) -> None:
        """Add the metrics of step `step` (0-based) of the current stage."""
        self._stage.add(tags)
        last = self._stage.total is not None and step + 1 == self._stage.total
        if self._mode == "plain" and (step % self._plain_every == 0 or last):
            self._print(Text(self._clean(self._plain_line(step, tags))))
        self._redraw()

    def trajectory(self, text: str) -> None:
        """Set the text of the latest episode; the live screen shows its last lines."""
        self._trajectory = text
        self._redraw()

    def line(self, text: str) -> None:
        """Print one message on one line, in every mode."""
        self._print(Text("\\n".join(self._clean(text).split("\n"))))

    def text(self, text: str, *, style: str = "", indent: int = 0) -> None:
        """Print a text with every line indented, in every mode. On a terminal it is styled and wrapped at the
        terminal's width; elsewhere lines are not wrapped."""
        body = Text(self._clean(text), style=style)
        if self._console.is_terminal:
            self._console.print(Padding(body, (0, 0, 0, indent)))
        else:
            self._print(Text("\n".join(f"{' ' * indent}{line}".rstrip() for line in body.plain.split("\n"))))

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print one result table, in every mode: first column left, the others right. Nothing is ever cut off: on a
        narrow terminal the table has no borders, and on a still narrower one a row becomes a few lines."""
        title, cells = self._clean(title), [[self._clean(cell) for cell in row] for row in (columns, *rows)]
        if not self._console.is_terminal:
            self._print_table(title, cells, HEAVY_HEAD)
            return
        for box in (HEAVY_HEAD, None):
            if self._wanted(_table(cells, box)) <= self._console.width:
                self._print_table(title, cells, box)
                return
        self._console.print(Text(title, style="table.title"))
        for name, *values in cells[1:]:
            self._console.print(Text(name, overflow="fold"))
            pairs = [f"{column} {value}" for column, value in zip(cells[0][1:], values, strict=True)]
            for line in _lines_of(pairs, self._console.width - 2):
                self._console.print(Padding(Text(line, overflow="fold"), (0, 0, 0, 2)))

    def _print_table(self, title: str, cells: Sequence[Sequence[str]], box: Box | None) -> None:
        table = _table(cells, box)
        table.width = self._wanted(table)
        heading = Text(title, style="table.title")
        if cell_len(title) <= table.width:
            table.title = heading
        else:  # else rich would break the title at the table's width
            self._console.print(heading, soft_wrap=not self._console.is_terminal)
        self._console.print(table, crop=False)

    def _wanted(self, table: Table) -> int:
        return Measurement.get(self._console, self._console.options.update(max_width=100_000), table).maximum

    def _clean(self, text: str) -> str:
        """`text` sanitised, secrets masked, with a "?" for characters that the terminal's encoding lacks."""
        encoding = self._console.encoding
        return sanitize(masked(text)).encode(encoding, "replace").decode(encoding)

    def _print(self, text: Text) -> None:
        self._said = self._now()
        self._console.print(text, soft_wrap=True)

    def _plain_line(self, step: int, tags: Mapping[str, float]) -> str:
        parts = [
            f"{self._stage.title} step {step}" + (f"/{self._stage.total}" if self._stage.total is not None else "")
        ]
        parts += [
            f"{name} {number(tags[tag])}" for tag, name in self._stage.shown(self._of_agent).items() if tag in tags
        ]
        return "  ".join(parts + self._stage.incidents())

    def _redraw(self) -> None:
        """Build a new frame, then swap it in, so that the refresh thread never sees a half-changed frame."""
        if not self._live:
            return
        stage, shown = self._stage, self._stage.shown(self._of_agent)
        self._frame = Frame(
            progress=stage.progress() if self._stages else None,
            trends=[Trended(self._clean(name), *stage.trends[tag].cells()) for tag, name in shown.items()],
            incidents=", ".join(stage.incidents()),
            episode=self._clean(self._trajectory).split("\n") if self._trajectory else (),
        )


def _table(cells: Sequence[Sequence[str]], box: Box | None) -> Table:
    table = Table(title_justify="left", box=box, pad_edge=box is not None)
    for i, column in enumerate(cells[0]):
        table.add_column(Text(column), justify="right" if i else "left", overflow="fold")
    for row in cells[1:]:
        table.add_row(*map(Text, row))
    return table


def _lines_of(parts: Sequence[str], width: int) -> list[str]:
    """Lines with as many parts as fit; no part is broken."""
    lines: list[str] = []
    for part in parts:
        if lines and cell_len(lines[-1]) + 2 + cell_len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(part)
    return lines


def _console(mode: str) -> Console:
    """The console of a mode. Only terminals get colours and cursor moves, whatever FORCE_COLOR asks of programs that
    only print; `plain` has no colours at all."""
    if mode == "live":
        return _Console(highlight=False, force_terminal=True)
    if mode == "quiet":
        return _Console(highlight=False)
    system: Literal["auto"] | None = None if mode == "plain" else "auto"
    return _Console(highlight=False, force_terminal=sys.stdout.isatty(), color_system=system)


# --- Progress of long work: a bar on a terminal, occasional lines elsewhere. On stderr, so that results can be piped.

BAR_PLAIN_EVERY_S = 10.0
_BAR = 20


class Bar:
    """A context manager. `what` names the units (passages); progress is counted in units or in another measure."""

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
        """Report for `title` that `done` units are done, and `position` of `total` (bytes of a file, or units) is
        reached. A new title is a new piece of work, whose speed is measured anew."""
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
        elif self._now() - self._said >= BAR_PLAIN_EVERY_S:
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
