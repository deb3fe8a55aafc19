"""What a person sees of a run: a live screen on a terminal, plain lines elsewhere, results either way.

Observation only: nothing here enters a metric or a file. Whatever is shown may come from a model or a web page, so
every text passes `sanitize` and is never read as markup. Plain lines hold no clock: equal runs print equal lines.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from agentgrpo.errors import ConfigError, did_you_mean

MODES = ("auto", "live", "plain", "quiet")
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
TRAJECTORY_LINES = 12

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def sanitize(text: str) -> str:
    """`text` as it may reach a terminal: without control characters other than newline and tab (C0, DEL, C1), without
    bidirectional controls, line and paragraph separators, and lone surrogates."""
    return "".join(
        c for c in text if c in "\n\t" or (unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp") and c not in _BIDI)
    )


def _number(value: float) -> str:
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
        return _number(now), _number(start), ("+" if change > 0 else "") + _number(change)


class _Stage:
    """A stretch of work with its own counts and metrics."""

    def __init__(self, title: str, total: int | None) -> None:
        self.title = title
        self.total = total
        self.trends: dict[str, _Trend] = {}
        self.num_skipped = 0
        self.num_failures = 0

    def add(self, tags: Mapping[str, float]) -> None:
        self.num_skipped += int(tags.get("skipped", 0))
        self.num_failures += int(sum(v for tag, v in tags.items() if tag.startswith("failures/")))
        for tag, value in tags.items():
            self.trends.setdefault(tag, _Trend()).add(value)

    def shown(self, of_agent: Mapping[str, str]) -> dict[str, str]:
        """Tag -> name of the metrics on the screen."""
        key = {tag: name for tag, name in {**OUTCOME, **of_agent, **LEARNING}.items() if tag in self.trends}
        return key or {tag: sanitize(tag) for tag in list(self.trends)[:MAX_OTHER]}


class _Console(Console):
    """Falls silent where its reader has left (`| head`): a run does not end because nobody watches."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Screen:
    """A context manager; leaving it, by an exception or Ctrl-C too, gives the terminal back as it was.

    mode: `live` redraws in place; `plain` prints a line per stage and one every `plain_every` steps; `quiet` prints
    only `line` and `table`; `auto` is live on a terminal, else plain. Where the output's encoding is not Unicode,
    plain stands in for live. Everything goes to stdout.
    """

    def __init__(self, mode: str = "auto", console: Console | None = None, *, plain_every: int = 10) -> None:
        if mode not in MODES:
            raise ConfigError(f"screen mode '{mode}'; allowed: {', '.join(MODES)}.{did_you_mean(mode, MODES)}")
        if plain_every < 1:
            raise ConfigError(f"plain_every {plain_every}: at least 1 step between lines is allowed; correct it")
        self._console = console or _Console(highlight=False, force_terminal=True if mode == "live" else None)
        on_terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        self._mode = mode if mode != "auto" else "live" if on_terminal else "plain"
        if self._mode == "live" and self._console.options.ascii_only:
            self._mode = "plain"
        self._plain_every = plain_every
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=self._console,
            speed_estimate_period=600.0,
        )
        self._of_agent: Mapping[str, str] = {}
        self._stages: dict[str, _Stage] = {}
        self._stage = _Stage("", None)
        self._trajectory = ""
        self._frame: RenderableType = Text("")
        self._live = (
            Live(get_renderable=lambda: self._frame, console=self._console, refresh_per_second=2)
            if self._mode == "live"
            else None
        )

    def __enter__(self) -> Screen:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the terminal back; harmless when it was given back before."""
        if self._live:
            self._live.stop()

    def show(self, names: Mapping[str, str]) -> None:
        """What an agent does is on the screen too: tag -> its name there."""
        self._of_agent = names

    def stage(self, title: str, total: int | None) -> None:
        """From here on `title` is worked at: `total` units (None = unknown), none of them done. A stage that comes back
        keeps its metrics."""
        self._stage = self._stages.setdefault(title, _Stage(self._clean(title), total))
        self._stage.total = total
        for done in self._progress.task_ids:
            self._progress.remove_task(done)
        self._progress.add_task(self._stage.title, total=total)
        if self._mode == "plain":
            self._print(Text(f"{self._stage.title}: {total} to do" if total is not None else self._stage.title))
        self._redraw()

    def advance(self, n: int = 1) -> None:
        """n more units are done."""
        for current in self._progress.task_ids:
            self._progress.advance(current, n)

    def metrics(self, step: int, tags: Mapping[str, float]) -> None:
        """What step `step` (0-based) of the current stage measured."""
        self._stage.add(tags)
        last = self._stage.total is not None and step + 1 == self._stage.total
        if self._mode == "plain" and (step % self._plain_every == 0 or last):
            self._print(Text(self._clean(self._plain_line(step, tags))))
        self._redraw()

    def trajectory(self, text: str) -> None:
        """The latest episode as text; its last lines are on the live screen."""
        self._trajectory = text
        self._redraw()

    def line(self, text: str) -> None:
        """Print one message, in every mode."""
        self._print(Text(self._clean(text)))

    def text(self, text: str, *, style: str = "", indent: int = 0) -> None:
        """Print a text, every line of it indented, in every mode. On a terminal it has its style, and is broken at the
        terminal's width; elsewhere its lines are as long as they are."""
        body = Text(self._clean(text), style=style)
        if self._console.is_terminal:
            self._console.print(Padding(body, (0, 0, 0, indent)))
        else:
            self._print(Text("\n".join(f"{' ' * indent}{line}".rstrip() for line in body.plain.split("\n"))))

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print one result table, in every mode: first column left, the others right. Nothing is ever cut off."""
        table = Table(title=Text(self._clean(title)), title_justify="left")
        for i, column in enumerate(columns):
            table.add_column(Text(self._clean(column)), justify="right" if i else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(self._clean(cell)) for cell in row))
        if not self._console.is_terminal:
            table.width = Measurement.get(self._console, self._console.options.update(max_width=100_000), table).maximum
        self._console.print(table, crop=self._console.is_terminal)

    def _clean(self, text: str) -> str:
        """Sanitised, with a "?" for what the terminal's encoding does not have."""
        encoding = self._console.encoding
        return sanitize(text).encode(encoding, "replace").decode(encoding)

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)

    def _plain_line(self, step: int, tags: Mapping[str, float]) -> str:
        parts = [
            f"{self._stage.title} step {step}" + (f"/{self._stage.total}" if self._stage.total is not None else "")
        ]
        parts += [
            f"{name} {_number(tags[tag])}" for tag, name in self._stage.shown(self._of_agent).items() if tag in tags
        ]
        return "  ".join(parts + self._incidents())

    def _incidents(self) -> list[str]:
        counts = {"skipped": self._stage.num_skipped, "failures": self._stage.num_failures}
        return [f"{name} {count}" for name, count in counts.items() if count]

    def _redraw(self) -> None:
        """A new frame, built whole and then swapped in: the refresh thread never sees a half-changed one."""
        if not self._live:
            return
        parts: list[RenderableType] = [self._progress]
        shown = self._stage.shown(self._of_agent)
        if shown:
            table = Table(box=None, padding=(0, 2, 0, 0))
            for heading in ("", "now", "start", "change"):
                table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
            for tag, name in shown.items():
                table.add_row(Text(self._clean(name)), *self._stage.trends[tag].cells())
            parts.append(table)
        parts += [Text(", ".join(self._incidents()))] if self._incidents() else []
        if self._trajectory:
            lines = self._clean(self._trajectory).split("\n")
            cut = ["..."] if len(lines) > TRAJECTORY_LINES else []
            tail = Text("\n".join(cut + lines[-TRAJECTORY_LINES:]), no_wrap=True, overflow="ellipsis")
            parts.append(Panel(tail, title="last episode", title_align="left"))
        self._frame = Group(*parts)
