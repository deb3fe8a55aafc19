"""JSON for other programs: strict, whatever a user's configuration holds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(value: Any, *, indent: int | None = None) -> str:
    """`value` as JSON, in ASCII. JSON has no infinity, no NaN and no dates: these are their text."""
    return json.dumps(_strict(value), indent=indent, default=str, allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _strict(item) for name, item in value.items()}
    return [_strict(item) for item in value] if isinstance(value, list | tuple) else value
