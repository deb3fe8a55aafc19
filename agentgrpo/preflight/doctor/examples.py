"""Invented arguments that fit a tool's JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEXTS = ("1", 'a "b" \\ c, \u00e9 \u6f22 {2}', "two\nlines")
"""Plain text, text with characters to escape, and text with a line break."""
_DEEPEST = 4


def arguments_of(parameters: Mapping[str, Any], variant: int = 0) -> dict[str, Any]:
    """One value for every property, optional ones included."""
    value = _value(parameters, variant, 0)
    return value if isinstance(value, dict) else {}


def _value(schema: Any, variant: int, depth: int) -> Any:
    """A value that the schema allows, for the common JSON schema keywords."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return None
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][variant % len(schema["enum"])]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _value(schema[key][0], variant, depth + 1)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object" or "properties" in schema:
        return {name: _value(inner, variant, depth + 1) for name, inner in schema.get("properties", {}).items()}
    if kind == "array":
        return [_value(schema.get("items", {}), variant, depth + 1)]
    least = schema.get("minimum", 1)
    plain = {"integer": int(least) + variant, "number": float(least) + 0.5 * variant, "boolean": variant % 2 == 0}
    if kind == "null":
        return None
    return plain.get(str(kind), TEXTS[variant % len(TEXTS)])
