"""Files that come with a task: metadata.files, {name: text}. Each episode gets copies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

FILES = "files"
"""The key of a task's metadata."""
_MAX_NAME_BYTES = 255


def problem_of(files: Any) -> str | None:
    """Say in one line why metadata.files cannot be written to a folder; None if it can."""
    if not files:
        return None
    if not isinstance(files, Mapping):
        return f"metadata.{FILES} is a {type(files).__name__}; {{name: text}} is needed"
    for name, text in files.items():
        if not isinstance(name, str) or not isinstance(text, str) or not _is_unicode(name):
            return f"metadata.{FILES} {name!r}; names and contents must be texts"
        parts = name.split("/")
        if any(p in ("", ".", "..") or "\0" in p or len(p.encode()) > _MAX_NAME_BYTES for p in parts):
            return f"file {name!r}; a relative path inside the workspace is allowed, such as data/a.txt"
        inside = [str(parent) for parent in PurePosixPath(name).parents]
        if clash := [other for other in inside if other in files]:
            return f"file {name!r} lies in {clash[0]!r}, which is a file too; rename one"
    return None


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # JSON can carry half a surrogate pair
        return False
    return True
