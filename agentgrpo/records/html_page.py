"""What all pages that a browser opens from disk have in common: where one may be written, what its policy admits."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from agentgrpo.errors import ConfigError

_HEAD_BYTES = 4096


def admitted(text: str) -> str:
    """A style or script as a source of a Content-Security-Policy, which then runs exactly this one."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def require_place(out: Path, *, verb: str, mark: bytes, example: str) -> None:
    """Raises ConfigError unless a page of `verb`, which has `mark` in its head, can be there: in place of nothing or of
    another one. example: a file's name, for who gives a folder."""
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; give a file in it, such as {out / example}")
    if out.exists() and not _has(out, mark):
        raise ConfigError(
            f"{out} exists and is no page of agentgrpo {verb}; remove it, or give another file with --out"
        )


def _has(path: Path, mark: bytes) -> bool:
    with path.open("rb") as file:
        return mark in file.read(_HEAD_BYTES)
