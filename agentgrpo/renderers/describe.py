"""Describes tools in words, if the chat template has no place for them. The result is message text: untrusted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.types import Message

REACT = """To call a tool, write its name and its arguments as a JSON object:
Action: NAME
Action Input: {"ARGUMENT": VALUE}
The result follows after "Observation:". Lines that begin with "Thought:" are for you alone.
When you know the answer, write:
Final Answer: ANSWER"""

FENCED = """To call a tool, write a JSON object in a code block, one block for each call:
```tool_code
{"name": "NAME", "arguments": {"ARGUMENT": VALUE}}
```
The results follow in blocks of ```tool_output. When you know the answer, write it without any such block."""

TAGS = """To call a tool, write its name as a tag, as below; calls follow each other, and nothing else is needed.
Words outside of tags call nothing."""


def describe(tools: Sequence[ToolSpec], how: str) -> str:
    """Return a line for each tool (name, description, JSON schema of its arguments), then `how` to call one."""
    lines = [
        f"{t.name}: {t.description} Arguments: {json.dumps(dict(t.parameters), ensure_ascii=False)}" for t in tools
    ]
    return "\n".join(["You can call these tools:", *lines, how])


def put_first(text: str, messages: Sequence[Message], *, system_role: bool) -> tuple[Message, ...]:
    """Return `messages` with `text` added to the system message, or as a new system message. If the chat template has
    no system role, `text` comes before the first message's content."""
    first, *rest = messages
    if first.role == "system":
        return (replace(first, content=f"{first.content}\n\n{text}"), *rest)
    if system_role:
        return (Message(role="system", content=text), *messages)
    return (replace(first, content=f"{text}\n\n{first.content}"), *rest)
