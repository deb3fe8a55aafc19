"""Charts as SVG, without scripts or style attributes. Colours are classes, whose light and dark values the page
defines.

Every text is escaped here, and only here; coordinates have two decimals, so that equal figures give equal bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from agentgrpo.records.screen import sanitize

WIDTH, HEIGHT = 480, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 16, 14, 46
_TICKS = 5
_NEAR = ((9, -9), (9, 18), (-9, -9), (-9, 18), (0, -14), (0, 24), (18, 5), (-18, 5))
"""Possible offsets of a mark's number from the mark."""
_APART = 13.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A point with its intervals; None if a bound is unknown."""

    x: float
    y: float
    number: str
    title: str
    kind: str
    """CSS class for the colour; "start" and "oracle" also have their own shapes."""
    x_low: float | None = None
    x_high: float | None = None
    y_low: float | None = None
    y_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """A series of one colour: points with intervals over x."""

    name: str
    points: Sequence[tuple[float, float, float | None, float | None]]
    """x, y, low, high."""


def text(value: str) -> str:
    """Escape a text for an element's content or a quoted attribute."""
    return escape(" ".join(sanitize(value).split()), quote=True)


def scatter(marks: Sequence[Mark], *, front: Sequence[tuple[float, float]], small: Iterable[tuple[float, float]],
            x_name: str, y_name: str, title: str) -> str:  # fmt: skip
    """front: points joined by a stair, the best quality at each cost; small: the single runs behind joined points."""
    small = list(small)
    xs = [v for m in marks for v in (m.x, m.x_low, m.x_high) if v is not None] + [x for x, _ in small]
    ys = [v for m in marks for v in (m.y, m.y_low, m.y_high) if v is not None] + [y for _, y in small]
    plane = _Plane(xs, ys)
    parts = plane.axes(x_name, y_name)
    if front:
        parts.append(f'<path class="front" d="{plane.stair(front)}"/>')
    parts += [f'<circle class="one" cx="{_n(plane.x(x))}" cy="{_n(plane.y(y))}" r="2"/>' for x, y in small]
    taken = [(plane.x(mark.x), plane.y(mark.y)) for mark in marks]
    for mark in marks:
        parts += _mark(plane, mark, taken)
    return _svg(title, parts)


def lines(series: Sequence[ChartLine], *, x_name: str, y_name: str, title: str) -> str:
    """Up to six series, in the colours of the classes s0 to s5."""
    xs = [point[0] for line in series for point in line.points]
    ys = [v for line in series for point in line.points for v in point[1:] if v is not None]
    plane = _Plane(xs, [0.0, *ys])
    parts = plane.axes(x_name, y_name)
    for i, line in enumerate(series):
        colour = f"s{i % 6}"
        path = " ".join(f"{_n(plane.x(x))},{_n(plane.y(y))}" for x, y, _, _ in line.points)
        parts.append(f'<polyline class="line {colour}" points="{path}"/>')
        for x, y, low, high in line.points:
            name = text(f"{line.name}: {y:.3f} at {x:g}")
            at = _n(plane.x(x))
            if low is not None and high is not None:
                parts.append(_segment(at, _n(plane.y(low)), at, _n(plane.y(high)), f"bar {colour}"))
            parts.append(
                f'<circle class="dot {colour}" cx="{at}" cy="{_n(plane.y(y))}" r="4"><title>{name}</title></circle>'
            )
    return _svg(title, parts)


# --- parts


class _Plane:
    """Maps data values to SVG coordinates."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self._xs, self._ys = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))

    def x(self, value: float) -> float:
        low, high = self._xs[0], self._xs[-1]
        return _LEFT + (value - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self._ys[0], self._ys[-1]
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    def axes(self, x_name: str, y_name: str) -> list[str]:
        bottom, right = _n(HEIGHT - _BOTTOM), _n(WIDTH - _RIGHT)
        parts = []
        for value in self._xs:
            at = _n(self.x(value))
            parts.append(_segment(at, _n(_TOP), at, bottom, "grid"))
            parts.append(
                f'<text class="tick" x="{at}" y="{HEIGHT - _BOTTOM + 17}" text-anchor="middle">{value:g}</text>'
            )
        for value in self._ys:
            at = _n(self.y(value))
            parts.append(_segment(_n(_LEFT), at, right, at, "grid"))
            parts.append(
                f'<text class="tick" x="{_LEFT - 7}" y="{_n(self.y(value) + 4)}" text-anchor="end">{value:g}</text>'
            )
        middle = _n((_TOP + HEIGHT - _BOTTOM) / 2)
        parts.append(
            f'<text class="name" x="{_n((_LEFT + WIDTH - _RIGHT) / 2)}" y="{HEIGHT - 8}" text-anchor="middle">'
            f"{text(x_name)}</text>"
        )
        parts.append(
            f'<text class="name" x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">'
            f"{text(y_name)}</text>"
        )
        return parts

    def stair(self, front: Sequence[tuple[float, float]]) -> str:
        """A stair path from the cheapest point on: quality rises only at the next point's cost."""
        path = ""
        for i, (x, y) in enumerate(sorted(front)):
            at = f"{_n(self.x(x))} {_n(self.y(y))}"
            path += f"M{at}" if not i else f" H{_n(self.x(x))} L{at}"
        return f"{path} H{_n(WIDTH - _RIGHT)}"


def _mark(plane: _Plane, mark: Mark, taken: list[tuple[float, float]]) -> list[str]:
    x, y = plane.x(mark.x), plane.y(mark.y)
    parts = []
    if mark.x_low is not None and mark.x_high is not None:
        parts.append(_segment(_n(plane.x(mark.x_low)), _n(y), _n(plane.x(mark.x_high)), _n(y), f"bar {mark.kind}"))
    if mark.y_low is not None and mark.y_high is not None:
        parts.append(_segment(_n(x), _n(plane.y(mark.y_low)), _n(x), _n(plane.y(mark.y_high)), f"bar {mark.kind}"))
    title = f"<title>{text(mark.title)}</title>"
    if mark.kind == "start":
        parts.append(f'<rect class="dot start" x="{_n(x - 5)}" y="{_n(y - 5)}" width="10" height="10">{title}</rect>')
    elif mark.kind == "oracle":
        corners = f"M{_n(x)} {_n(y - 7)} L{_n(x + 7)} {_n(y)} L{_n(x)} {_n(y + 7)} L{_n(x - 7)} {_n(y)} Z"
        parts.append(f'<path class="dot oracle" d="{corners}">{title}</path>')
    else:
        parts.append(f'<circle class="dot {mark.kind}" cx="{_n(x)}" cy="{_n(y)}" r="5.5">{title}</circle>')
    at = _free(x, y, taken)
    taken.append(at)
    parts.append(
        f'<text class="number" x="{_n(at[0])}" y="{_n(at[1])}" text-anchor="middle">{text(mark.number)}</text>'
    )
    return parts


def _free(x: float, y: float, taken: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The offset with most room for the number."""
    places = [(x + dx, y + dy) for dx, dy in _NEAR if _TOP < y + dy < HEIGHT - _BOTTOM and _LEFT < x + dx < WIDTH]
    places = places or [(x, y)]

    def room(at: tuple[float, float]) -> float:
        return min(_APART, min(math.dist((at[0], at[1] - 5), other) for other in taken))

    return max(places, key=room)


def ticks(low: float, high: float) -> list[float]:
    """About _TICKS round numbers; the first and last enclose low and high."""
    if not high - low > 1e-9 * max(abs(low), abs(high)):  # low and high are equal at the axis's precision
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if low else (0.0, 1.0)
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _segment(x1: str, y1: str, x2: str, y2: str, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _svg(title: str, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(title)}">\n<title>{text(title)}</title>\n'
        f"{body}\n</svg>"
    )
