"""How the policy acts on an OpenEnv server, and observations as text.

one text field                        the policy's turn is that text
more fields, or one of another type   a tool `act`, whose arguments are the fields
calls of tools (MCP environments)     the tools that the server lists
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.tools.base import ToolResult

ACT = "act"
_REF = "#/$defs/"
_OWN = frozenset({"metadata"})
"""Fields of every action and observation."""
_CALL = frozenset({"tool_name", "arguments"})
"""Fields of an action that calls a tool."""


@dataclass(frozen=True, slots=True)
class TextForm:
    field: str

    def action(self, text: str) -> Mapping[str, Any]:
        return {self.field: text}


@dataclass(frozen=True, slots=True)
class ActForm:
    spec: ToolSpec


@dataclass(frozen=True, slots=True)
class McpForm:
    """The server lists the tools."""


Form: TypeAlias = TextForm | ActForm | McpForm


def form_of(schema: Mapping[str, Any], text_field: str | None = None) -> Form:
    """Read the JSON schema of a server's actions. text_field: the field that takes the policy's text, whatever other
    fields there are. Raises ConfigError for a text_field that the schema does not have."""
    fields = {
        name: field
        for name, field in (schema.get("properties") or {}).items()
        if name not in _OWN and "const" not in field
    }
    if text_field is not None:
        if text_field not in fields:
            known = ", ".join(fields) or "none"
            raise ConfigError(f"environment.text_field={text_field}; fields of the server's actions are {known}")
        return TextForm(text_field)
    if fields.keys() <= _CALL:
        return McpForm()
    if len(fields) == 1:
        [(name, field)] = fields.items()
        if _is_text(field):
            return TextForm(name)
    parameters = {
        "type": "object",
        "properties": _inlined(fields, schema.get("$defs") or {}),
        "required": [n for n in schema.get("required", ()) if n in fields],
    }
    if _REF in json.dumps(parameters):  # a definition that refers to itself
        parameters["$defs"] = schema["$defs"]
    description = " ".join(str(schema.get("description") or "").split())
    return ActForm(ToolSpec(name=ACT, description=description or "Act in the environment.", parameters=parameters))


def spec_of(listed: Mapping[str, Any]) -> ToolSpec:
    """Return the specification of a tool as MCP lists it."""
    schema = listed.get("inputSchema") or listed.get("input_schema") or {"type": "object", "properties": {}}
    description = " ".join(str(listed.get("description") or "").split())
    return ToolSpec(name=str(listed.get("name")), description=description, parameters=schema)


def call_of(name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the action that calls a tool."""
    return {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}


def text_of(observation: Mapping[str, Any], shown: Sequence[str] = ()) -> str:
    """Return an observation as text. shown: the fields that the policy sees, in this order; () = all that are not
    empty. A single text or list stands alone; otherwise each field is a line. Without any field to show, the metadata
    are shown."""
    names = shown or [name for name in observation if name not in _OWN]
    said = {name: observation[name] for name in names if observation.get(name) not in (None, "", [], {})}
    if not said and not shown and isinstance(inner := observation.get("metadata"), Mapping):
        said = {str(name): value for name, value in inner.items() if value not in (None, "", [], {})}
    if len(said) == 1 and isinstance(only := next(iter(said.values())), str | list):
        return _written(only)
    return "\n".join(f"{name}: {_written(value)}" for name, value in said.items())


def result_of(observation: Mapping[str, Any], shown: Sequence[str] = ()) -> ToolResult:
    """Return the result of a tool call."""
    if isinstance(error := observation.get("error"), Mapping):
        return ToolResult.failed(str(error.get("message") or error.get("error_type")))
    result = observation.get("result")
    if not isinstance(result, Mapping) or not isinstance(content := result.get("content"), Sequence):
        said = text_of(observation, shown) if result is None else _written(result)
        return ToolResult.ok(said)
    parts = [part for part in content if isinstance(part, Mapping)]
    text = "\n".join(str(part["text"]) if "text" in part else f"[{part.get('type')}]" for part in parts)
    return ToolResult.failed(text) if result.get("is_error") or result.get("isError") else ToolResult.ok(text)


def _inlined(node: Any, definitions: Mapping[str, Any], within: tuple[str, ...] = ()) -> Any:
    """Return a schema with each reference replaced by its definition: a policy reads it, and renderers show only
    properties. within: the definitions that enclose the node; references to them stay, since expanding them would never
    end."""
    if isinstance(node, list):
        return [_inlined(one, definitions, within) for one in node]
    if not isinstance(node, Mapping):
        return node
    name = str(node.get("$ref", "")).removeprefix(_REF)
    if name in definitions and name not in within:
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return _inlined({**definitions[name], **beside}, definitions, (*within, name))
    return {key: _inlined(value, definitions, within) for key, value in node.items()}


def _is_text(field: Mapping[str, Any]) -> bool:
    kinds = [field, *field.get("anyOf", ())]
    return any(kind.get("type") == "string" for kind in kinds)


def _written(value: object) -> str:
    """Return a value as text; for a list of messages, their contents."""
    if isinstance(value, list) and all(isinstance(m, Mapping) and isinstance(m.get("content"), str) for m in value):
        return "\n".join(m["content"] for m in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
