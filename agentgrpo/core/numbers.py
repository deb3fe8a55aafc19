"""Check numbers and their names from external code: rewards, metrics, grades. Invalid values are refused on entry, so
that later code reads plain Python floats, in a range where sums and squares are finite."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from numbers import Real
from typing import Any, TypeVar

from agentgrpo.core.errors import BadValue
from agentgrpo.core.untrusted import visible

T = TypeVar("T")
LARGEST = 1e12
"""Largest absolute value of a number."""
LONGEST = 128
"""Maximum number of characters of a name."""
MOST = 1000
"""Maximum number of metric names of one episode."""
_SHOWN = 40
_PART = r"\w(?:[\w .:@%+-]*[\w.:@%+-])?"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")


def number(value: object, what: str) -> float:
    """Return `value` as a float: a Real, a Decimal, or an object whose `item()` is a number (numpy, torch); true is
    1.0. Raises BadValue for anything else, and for a number that is not finite or beyond LARGEST. what: the subject of
    the message, such as shop:Shop.score: height."""
    try:
        found = _float(value)
    except OverflowError:
        found = math.inf
    except Exception as e:  # raised by the value's own methods
        raise BadValue(f"{what} is {_shown(value)}; a number is allowed") from e
    if not is_number(found):
        raise BadValue(f"{what} is {found:g}; a number from {-LARGEST:g} to {LARGEST:g} is allowed")
    return found


def is_number(value: float) -> bool:
    """Whether a Python float is finite and not beyond LARGEST."""
    return abs(value) <= LARGEST


def row(value: object, what: str, *, most: int) -> float | tuple[float, ...]:
    """Return a number, or a tuple of at most `most` numbers. Raises BadValue."""
    kind = type(value)
    is_row = issubclass(kind, Sequence) and not issubclass(kind, str | bytes)
    if not is_row and not getattr(value, "ndim", 0):
        return number(value, what)
    values = list(islice(value, most + 1))  # type: ignore[call-overload]
    if len(values) > most:
        raise BadValue(f"{what} is a row of more than {most}; give one number, or one number per sampled turn")
    return tuple(number(one, f"{what}[{i}]") for i, one in enumerate(values))


def named(
    values: object, what: str, read: Callable[[object, str], T], *, known: Collection[str] = (), most: int = MOST
) -> dict[str, T]:
    """Return `read` of each of `values`, by name. known: names that the episode has already. Raises BadValue if
    `values` is no mapping, for an invalid metric name, and for more than `most` names in all."""
    if not issubclass(type(values), Mapping):
        raise BadValue(f"{what} is {_shown(values)}; numbers by name are allowed")
    given = list(islice(values.items(), most + 1))  # type: ignore[attr-defined]
    found = {(name := _name(key, what)): read(value, f"{what}: {name}") for key, value in given}
    if len(given) > most or len({*known, *found}) > most:
        raise BadValue(f"{what} makes more than {most} metrics of one episode; give fewer")
    return found


def refuse_taken(names: Collection[str], taken: Collection[str], what: str) -> None:
    """Raise BadValue for the first of `names` that is in `taken`, the metrics that the environment measures itself."""
    if clash := sorted(name for name in taken if name in names):
        raise BadValue(
            f"{what} gave a metric {clash[0]}, which the environment measures itself; call it something else than "
            f"{', '.join(sorted(taken))}"
        )


def _float(value: Any) -> float:
    """Convert by the real type: `__class__` may give another type, and methods of a subclass may return anything."""
    kind = type(value)
    if issubclass(kind, float):
        return float.__float__(value)
    if issubclass(kind, int):
        return int.__float__(value)
    if issubclass(kind, Real | Decimal):
        return float(value)
    inner = value.item()
    if not issubclass(type(inner), int | float):
        raise TypeError
    return _float(inner)


def _name(given: object, what: str) -> str:
    name = str.__str__(given) if issubclass(type(given), str) else ""
    if len(name) > LONGEST or not _NAME.fullmatch(name):
        raise BadValue(
            f"{what} gave a metric {_shown(given)}; a name has 1 to {LONGEST} letters, digits, spaces and _.:@%+-, in "
            "parts between / that begin with a letter or digit"
        )
    return name


def _shown(value: object) -> str:
    """Describe a value in a few characters, without calling its methods."""
    if issubclass(type(value), str):
        return ascii(str.__str__(value)[:_SHOWN])
    return "None" if value is None else f"of type {visible(type(value).__name__)[:_SHOWN]}"
