"""The frame of a live screen, fitted to the terminal: a progress line, metrics and their trends, the last episode.

Nothing wraps. On a narrow terminal columns, the bar and the time left are dropped first, then names are cut. On a low
terminal the episode is dropped first. Screen has cleaned all texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.text import Text

EPISODE_LINES = 12
LEAST_EPISODE_LINES = 2
LEAST_BAR, MOST_BAR = 5, 40
LEAST_NAME = 12


class Spelled(NamedTuple):
    """One wording of the progress: the text before the bar, and the text after it."""

    left: str
    right: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressLine:
    """One line, with the first of the `ways` that fits, and a bar if there is room for it."""

    ways: Callable[[], Sequence[Spelled]]
    """The longest first; called at every redraw, so that the time left falls."""
    done: float
    total: float | None
    most_bar: int = MOST_BAR

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, ways = options.max_width, self.ways()
        way = next((w for w in ways if _width(w) <= width), ways[-1])
        room = min(self.most_bar, width - _width(way) - 1)
        yield Segment(cut(way.left, width - (cell_len(way.right) + 1 if way.right else 0)))
        if self.total is not None and room >= LEAST_BAR:
            yield Segment(" ")
            segments = [*console.render(ProgressBar(self.total or 1, self.done, width=room), options)]
            yield from segments
            yield Segment(" " * (room - Segment.get_line_length(segments)))
        if way.right:
            yield Segment(f" {cut(way.right, width)}" if way.left else cut(way.right, width))
        yield Segment.line()


def _width(way: Spelled) -> int:
    return cell_len(way.left) + (cell_len(way.right) + 1 if way.right else 0)


class Trended(NamedTuple):
    """A metric's line on the screen."""

    name: str
    now: str
    start: str
    change: str


HEADINGS = Trended("", "now", "start", "change")
COLUMNS = (("now", "start", "change"), ("now", "change"), ("now",))
"""The columns shown of a metric, the widest choice first."""


def trend_lines(rows: Sequence[Trended], width: int) -> list[str]:
    """The heading and a line per metric. A name that is too long keeps its end, where names differ most."""
    longest = max(cell_len(row.name) for row in rows)
    for shown in COLUMNS:
        widths = [max(cell_len(getattr(row, column)) for row in (HEADINGS, *rows)) for column in shown]
        room = width - sum(widths) - 2 * len(widths)
        if room >= min(longest, LEAST_NAME):
            break
    room = max(1, min(longest, room))
    return [
        "".join(
            [set_cell_size(_tail(row.name, room), room)]
            + [f"  {getattr(row, column):>{size}}" for column, size in zip(shown, widths, strict=True)]
        )
        for row in (HEADINGS, *rows)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    progress: ConsoleRenderable | None = None
    trends: Sequence[Trended] = ()
    incidents: str = ""
    episode: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.size.height
        if self.progress is not None:
            yield self.progress
            height -= 1
        if self.trends:
            first, *rest = trend_lines(self.trends, width)
            yield _whole(first, "bold")
            yield from map(_whole, rest)
            height -= 1 + len(rest)
        if self.incidents:
            yield _whole(self.incidents)
            height -= 1
        room = min(EPISODE_LINES, height - 3)  # two lines of border, and one that marks a cut
        if self.episode and room >= LEAST_EPISODE_LINES:
            lines = [*["..."] * (len(self.episode) > room), *self.episode[-room:]]
            body = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
            yield Panel(body, title="last episode", title_align="left")


def _whole(line: str, style: str = "") -> Text:
    return Text(line, style=style, no_wrap=True, overflow="ellipsis")


def cut(text: str, width: int) -> str:
    """`text` in at most `width` cells; an ellipsis replaces the rest."""
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}…" if width > 0 else ""


def _tail(name: str, width: int) -> str:
    if cell_len(name) <= width:
        return name
    while name and cell_len(name) > width - 1:
        name = name[1:]
    return f"…{name}"


class SteadyLive(Live):
    """Draws over itself even if the terminal has become narrower since. A modern terminal then breaks the lines on the
    screen into more rows than were drawn."""

    def __init__(self, frame: Callable[[], ConsoleRenderable], console: Console, *, transient: bool = False) -> None:
        self._drawn = _Measured(frame)
        super().__init__(get_renderable=lambda: self._drawn, console=console, refresh_per_second=2, transient=transient)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        with self._lock:
            drawn, shape = self._live_render.last_render_height, self._live_render._shape
            if shape is not None and self.console.width < self._drawn.width:
                rows = sum(max(1, -(-length // self.console.width)) for length in self._drawn.lengths[:drawn])
                self._live_render._shape = shape[0], min(rows, self.console.height)
            return super().process_renderables(renderables)


class _Measured:
    """Records the terminal's width and the length of each line when a frame is drawn."""

    def __init__(self, frame: Callable[[], ConsoleRenderable]) -> None:
        self._frame = frame
        self.width, self.lengths = 0, list[int]()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._frame(), options, pad=False)
        self.width, self.lengths = options.max_width, [Segment.get_line_length(line) for line in lines]
        for line in lines:
            yield from line
            yield Segment.line()
