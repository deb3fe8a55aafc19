"""What a value of others' code says as text: a str as it is, None as "", parts of messages of type text as their texts,
anything else as str() of it. It imports nothing of this package: services.worker loads it as a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = ("text", "image", "audio", "video")
_BESIDE = frozenset(
    {"type", "url", "path", "base64", "data", "source", "detail", "format", "mimeType", "mime_type", "cache_control"}
    | {"annotations", "_meta"}
)
"""Keys that a part of a message may have, as TRL, transformers, OpenAI, Anthropic and MCP write it; a row of data with
other keys is no part."""


class NotText(ValueError):
    """An image, a sound or a video, which no policy reads."""


def text_of(value: Any, what: str) -> str:
    """what: where it is from, for the message. Raises NotText."""
    text = text_in(value, what)
    return text if text is not None else "" if value is None else str(value)


def text_in(value: Any, what: str) -> str | None:
    """Of a str or parts; None for anything else. Raises NotText."""
    parts = value if isinstance(value, list | tuple) else [value]
    kinds = [_kind(part) for part in parts]
    if seen := [kind for kind in kinds if kind not in ("", "text")]:
        raise NotText(f"{what} has a part of type {seen[0]}; a policy reads text: give a text, or parts of type text")
    if "text" in kinds and all(kind or isinstance(part, str) for kind, part in zip(kinds, parts, strict=True)):
        return "".join(part if isinstance(part, str) else part["text"] for part in parts)
    return value if isinstance(value, str) else None


def _kind(part: Any) -> str:
    """One of _TYPES; "" for what is no part of a message."""
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
