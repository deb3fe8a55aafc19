"""What a person sees of a run: a live screen on a terminal, plain lines elsewhere, results either way.

Observation only: nothing here enters a metric or a file. Whatever is shown may come from a model or a web page, so
every text passes `sanitize` and is never read as markup. Plain lines have no control characters and, but for those
that say how far long work is, hold no clock: equal runs print equal lines.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Literal

from rich.box import HEAVY_HEAD, Box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from agentgrpo.errors import ConfigError, did_you_mean
from agentgrpo.records.frame import Frame, SteadyLive, Trended
from agentgrpo.records.stretch import Stretch, number, sanitize

MODES = ("auto", "live", "plain", "quiet")
PLAIN_EVERY_S, PLAIN_SHARE = 10.0, 0.05
"""A plain line says how far work is where none was printed for so long: seconds, or of the stage's time so far where
that is longer, so that a log of hours stays short."""


class _Console(Console):
    """Falls silent where its reader has left (`| head`): a run does not end because nobody watches."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Screen:
    """A context manager; leaving it, by an exception or Ctrl-C too, gives the terminal back as it was.

    mode: `live` redraws in place; `plain` prints a line per stage, one every `plain_every` steps, and now and then how
    far it is; `quiet` prints only `line` and `table`; `auto` is live on a terminal, else plain. Where the output's
    encoding is not Unicode, or the terminal cannot move its cursor (TERM=dumb), plain stands in for live. Everything
    goes to stdout.
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
        """Give the terminal back; harmless when it was given back before."""
        if self._live:
            self._live.stop()

    def show(self, names: Mapping[str, str]) -> None:
        """What an agent does is on the screen too: tag -> its name there."""
        self._of_agent = names

    @property
    def width(self) -> int:
        """Columns of the terminal; 80 where there is none."""
        return self._console.width

    @property
    def has_unicode(self) -> bool:
        """Whether what is printed is for the eyes alone, and may be drawn with all of Unicode."""
        return self._console.is_terminal and not self._console.options.ascii_only

    def stage(self, title: str, total: int | None) -> None:
        """From here on `title` is worked at: `total` units (None = unknown), none of them done. A stage that comes back
        keeps its metrics."""
        stage = self._stage = self._stages.setdefault(title, Stretch(self._clean(title), self._now))
        stage.begin(total)
        if self._mode == "plain":
            self._print(Text(f"{stage.title}: {total:,} to do" if total is not None else stage.title))
        self._redraw()

    def advance(self, n: int = 1) -> None:
        """n more units are done."""
        stage = self._stage
        stage.advance(n)
        self._redraw()
        silent_s, so_far_s = self._now() - self._said, self._now() - stage.began
        if self._mode == "plain" and silent_s >= max(PLAIN_EVERY_S, PLAIN_SHARE * so_far_s):
            share = "" if not stage.total else f"{100 * stage.done // stage.total} %"
            self._print(Text(", ".join(filter(None, [f"{stage.title}: {stage.counted()}", share, stage.left()]))))

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
        """Print one message, in every mode; it stays one line."""
        self._print(Text("\\n".join(self._clean(text).split("\n"))))

    def text(self, text: str, *, style: str = "", indent: int = 0) -> None:
        """Print a text, every line of it indented, in every mode. On a terminal it has its style, and is broken at the
        terminal's width; elsewhere its lines are as long as they are."""
        body = Text(self._clean(text), style=style)
        if self._console.is_terminal:
            self._console.print(Padding(body, (0, 0, 0, indent)))
        else:
            self._print(Text("\n".join(f"{' ' * indent}{line}".rstrip() for line in body.plain.split("\n"))))

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print one result table, in every mode: first column left, the others right. Nothing is ever cut off: where
        there is little width it has no borders, and where there is less, a row becomes a few lines."""
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
        else:  # or it would be broken at the table's width
            self._console.print(heading, soft_wrap=not self._console.is_terminal)
        self._console.print(table, crop=False)

    def _wanted(self, table: Table) -> int:
        return Measurement.get(self._console, self._console.options.update(max_width=100_000), table).maximum

    def _clean(self, text: str) -> str:
        """Sanitised, with a "?" for what the terminal's encoding does not have."""
        encoding = self._console.encoding
        return sanitize(text).encode(encoding, "replace").decode(encoding)

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
        """A new frame, built whole and then swapped in: the refresh thread never sees a half-changed one."""
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
    """As many parts per line as fit; none is broken."""
    lines: list[str] = []
    for part in parts:
        if lines and cell_len(lines[-1]) + 2 + cell_len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(part)
    return lines


def _console(mode: str) -> Console:
    """Colours and moves for terminals alone, whatever FORCE_COLOR asks of programs that only print; with `plain` for
    none at all."""
    if mode == "live":
        return _Console(highlight=False, force_terminal=True)
    if mode == "quiet":
        return _Console(highlight=False)
    system: Literal["auto"] | None = None if mode == "plain" else "auto"
    return _Console(highlight=False, force_terminal=sys.stdout.isatty(), color_system=system)
