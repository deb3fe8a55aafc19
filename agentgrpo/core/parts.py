"""The text of a value from external code: a str unchanged, None as "", message parts of type text as their texts,
anything else as its str(). This module imports nothing of this package: services.worker loads it as a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = ("text", "image", "audio", "video")
_BESIDE = frozenset(
    {"type", "url", "path", "base64", "data", "source", "detail", "format", "mimeType", "mime_type", "cache_control"}
    | {"annotations", "_meta"}
)
"""Keys that a message part may have in the formats of TRL, transformers, OpenAI, Anthropic and MCP. A mapping with
other keys is a row of data, not a part."""


class NotText(ValueError):
    """The value is an image, a sound or a video; a policy reads text only."""


def text_of(value: Any, what: str) -> str:
    """Return the text of `value`, as this module defines it. what: its origin, for the message. Raises NotText."""
    text = text_in(value, what)
    return text if text is not None else "" if value is None else str(value)


def text_in(value: Any, what: str) -> str | None:
    """Return the text of a str or of message parts; None for anything else. Raises NotText."""
    parts = value if isinstance(value, list | tuple) else [value]
    kinds = [_kind(part) for part in parts]
    if seen := [kind for kind in kinds if kind not in ("", "text")]:
        raise NotText(f"{what} has a part of type {seen[0]}; a policy reads text: give a text, or parts of type text")
    if "text" in kinds and all(kind or isinstance(part, str) for kind, part in zip(kinds, parts, strict=True)):
        return "".join(part if isinstance(part, str) else part["text"] for part in parts)
    return value if isinstance(value, str) else None


def _kind(part: Any) -> str:
    """Return the type of a message part, one of _TYPES; "" for any other value."""
    if isinstance(part, str):
        return "image" if part.startswith("data:image/") else ""
    if not isinstance(part, Mapping):
        is_picture = type(part).__module__.startswith("PIL.") or getattr(part, "ndim", 0) == 3
        return "image" if is_picture else ""
    name = part.get("type")
    kind = next((kind for kind in _TYPES if isinstance(name, str) and kind in name.split("_")), "")
    if not kind or not part.keys() <= {*_BESIDE, kind, name, f"{kind}_url"}:
        return ""
    return kind if kind != "text" or isinstance(part.get("text"), str) else ""
