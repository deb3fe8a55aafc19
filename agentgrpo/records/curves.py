"""Curves drawn with characters: in Braille dots if the terminal has them, else in ASCII.

    reward  0.479 -> 0.926
     1.012             .-'''''--''''-'
           .--'''-----'
     0.479 '

Curves stand side by side as far as there is room. If a curve has more steps than its drawing has columns, each column
shows the mean of its steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from statistics import fmean
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

ROWS = 4
LEAST_WIDTH = 38
"""Minimum width of a curve beside others; in a narrower terminal, one curve takes the whole width."""
GAP = 2
ENDS = 5
"""Number of steps whose mean is the first or the last value; fewer if the curve has less than twice as many."""
_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""Braille: the bit of each dot of a cell's left and right column, from the bottom."""
_STROKES = ".-'"
"""ASCII: the lower, middle and upper third of a cell."""


class Curve(NamedTuple):
    name: str
    points: Sequence[tuple[int, float]]
    """(step, value), steps rising; at least one."""


def curves_of(rows: Sequence[Mapping[str, float | None]], names: Mapping[str, str]) -> list[Curve]:
    """names: tag -> name of its curve. Tags without values are left out, and so are values that are not finite."""
    found = []
    for tag, name in names.items():
        points = [(int(row["step"] or 0), float(value)) for row in rows if (value := row.get(tag)) is not None]
        if points:
            found.append(Curve(name, points))
    return found


def curve_lines(curves: Sequence[Curve], *, width: int, has_unicode: bool) -> Iterator[str]:
    """The drawings of all curves, in lines of at most `width` cells."""
    if not curves:
        return
    beside = min(len(curves), max(1, (width + GAP) // (LEAST_WIDTH + GAP)))
    each = (width - GAP * (beside - 1)) // beside
    last = max(step for curve in curves for step, _ in curve.points)
    for i in range(0, len(curves), beside):
        blocks = [_block(curve, last, width=each, has_unicode=has_unicode) for curve in curves[i : i + beside]]
        for parts in zip_longest(*blocks, fillvalue=""):
            yield (" " * GAP).join(set_cell_size(part, each) for part in parts).rstrip()


def _block(curve: Curve, last: int, *, width: int, has_unicode: bool) -> list[str]:
    values = [value for _, value in curve.points]
    low, high = min(values), max(values)
    arrow = "\u2192" if has_unicode else "->"
    ends = max(1, min(ENDS, len(values) // 2))
    head = f"{_short(fmean(values[:ends]))} {arrow} {_short(fmean(values[-ends:]))}"
    labels = [_short(high), *[""] * (ROWS - 2), _short(low)]
    margin = max(map(len, labels))
    columns = max(1, width - margin - 3)
    drawn = _braille(curve.points, last, columns) if has_unicode else _ascii(curve.points, last, columns)
    name = (
        curve.name
        if cell_len(curve.name) + cell_len(head) + 2 <= width
        else curve.name[: max(0, width - len(head) - 2)]
    )
    return [f"{name}  {head}", *(f" {label:>{margin}} {row}" for label, row in zip(labels, drawn, strict=True))]


def _heights(points: Sequence[tuple[int, float]], last: int, columns: int, levels: int) -> list[int | None]:
    """For each column the level of its mean, 0 = the lowest value of all; None if it has no step. A flat curve lies in
    the middle."""
    found: list[list[float]] = [[] for _ in range(columns)]
    for step, value in points:
        shared = last >= columns  # else each step has a column, and the last step the last column
        found[step * columns // (last + 1) if shared else step * (columns - 1) // max(1, last)].append(value)
    low, high = min(v for _, v in points), max(v for _, v in points)
    return [
        None
        if not values
        else round((fmean(values) - low) / (high - low) * (levels - 1))
        if high > low
        else levels // 2
        for values in found
    ]


def _joined(heights: Sequence[int | None]) -> list[int | None]:
    """The heights, with columns between two known ones filled along the line between them."""
    known = [(i, height) for i, height in enumerate(heights) if height is not None]
    joined = list(heights)
    for (left, before), (right, after) in pairwise(known):
        for i in range(left + 1, right):
            joined[i] = round(before + (after - before) * (i - left) / (right - left))
    return joined


def _braille(points: Sequence[tuple[int, float]], last: int, columns: int) -> list[str]:
    heights = _joined(_heights(points, last, 2 * columns, 4 * ROWS))
    cells = [[0] * columns for _ in range(ROWS)]
    before: int | None = None
    for x, height in enumerate(heights):
        if height is not None:
            for y in _reach(before, height):
                cells[ROWS - 1 - y // 4][x // 2] |= _DOTS[x % 2][y % 4]
        before = height
    return ["".join(chr(0x2800 + bits) for bits in row) for row in cells]


def _reach(before: int | None, height: int) -> Iterable[int]:
    """The dots of a column: from next to the last column's height to its height."""
    if before is None or abs(height - before) <= 1:
        return (height,)
    return range(before + 1, height + 1) if height > before else range(height, before)


def _ascii(points: Sequence[tuple[int, float]], last: int, columns: int) -> list[str]:
    rows = [[" "] * columns for _ in range(ROWS)]
    for x, height in enumerate(_joined(_heights(points, last, columns, 3 * ROWS))):
        if height is not None:
            rows[ROWS - 1 - height // 3][x] = _STROKES[height % 3]
    return ["".join(row) for row in rows]


def _short(value: float) -> str:
    """`value` in at most seven characters, unless it is very small or large."""
    if value and not 0.001 <= abs(value) < 100_000:
        return f"{value:.1e}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}"
