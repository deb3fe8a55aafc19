"""Shared code of the pages that a browser opens from disk: allowed places, content security policy, JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgrpo.core.errors import ConfigError

_HEAD_BYTES = 4096


def admitted(text: str) -> str:
    """The source expression for a Content-Security-Policy that admits exactly this style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def require_place(out: Path, *, verb: str, mark: bytes, example: str) -> None:
    """Raises ConfigError unless a page of `verb` may be written to `out`: only an earlier page may be there, known by
    `mark` in its head. example: a file's name for the error about a folder."""
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; give a file, such as {out / example}")
    if out.exists() and not _has(out, mark):
        raise ConfigError(
            f"{out} exists and is no page of agentgrpo {verb}; remove it, or give another file with --out"
        )


def _has(path: Path, mark: bytes) -> bool:
    with path.open("rb") as file:
        return mark in file.read(_HEAD_BYTES)


# --- JSON for other programs: strict, whatever a user's configuration holds.


def json_text(value: Any, *, indent: int | None = None) -> str:
    """`value` as JSON, in ASCII. JSON has no infinity, no NaN and no dates: these become texts."""
    return json.dumps(_strict(value), indent=indent, default=str, allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _strict(item) for name, item in value.items()}
    return [_strict(item) for item in value] if isinstance(value, list | tuple) else value
