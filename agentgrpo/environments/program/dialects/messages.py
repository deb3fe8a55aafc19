"""Anthropic's messages."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.program.exchange import (
    ChatAnswer,
    ChatMessage,
    ChatRefused,
    ChatRequest,
    History,
    Parameters,
    ProgramDialect,
    Stored,
    content,
    count,
    flag,
    form_of,
    items,
    key_of,
    schema_of,
    stops,
    text,
    tool,
)

_PARAMETERS = Parameters(
    read=frozenset(
        {"messages", "system", "model", "tools", "stream", "stop_sequences", "max_tokens"}
        | {"tool_choice", "output_config", "output_format"}
    ),
    harmless={
        "thinking": ({"type": "disabled"},),
    },
    silent=frozenset({"metadata", "service_tier", "cache_control", "inference_geo"}),
)
_CHOICES = ("auto", "none", "any", "tool")
_OF_CHOICE = {"type", "name", "disable_parallel_tool_use"}
_THOUGHTS = ("thinking", "redacted_thinking")
_KINDS = {400: "invalid_request_error", 404: "not_found_error", 408: "timeout_error", 413: "request_too_large"}


def _request_of(body: bytes, sampling: SamplingParams, ignored: Collection[str], stored: Stored) -> ChatRequest:
    given = _PARAMETERS.of(body, sampling, ignored)
    choice = _choice(given.get("tool_choice", {"type": "auto"}))
    offers = [] if choice["type"] == "none" else items(given.get("tools"), "tools")
    tools = tuple(tool(_function(each, f"tools[{i}]"), "input_schema", f"tools[{i}]") for i, each in enumerate(offers))
    return ChatRequest(
        messages=_messages(given.get("messages"), given.get("system")),
        model=text(given.get("model", ""), "model"),
        tools=tools or None,
        tools_key=key_of(tools),
        is_parallel=not choice.get("disable_parallel_tool_use", False),
        form=form_of(_schema(given), tools, forced=choice.get("name", choice["type"] == "any"), key="tool_choice"),
        stop=stops(given.get("stop_sequences", []), "stop_sequences"),
        max_tokens=count(given.get("max_tokens"), "max_tokens"),
        stream=flag(given.get("stream", False), "stream"),
    )


def _choice(given: Any) -> Mapping[str, Any]:
    known = isinstance(given, dict) and given.get("type") in _CHOICES and given.keys() <= _OF_CHOICE
    if not known or (given["type"] == "tool") != isinstance(given.get("name"), str):
        raise ChatRefused(
            f'tool_choice={json.dumps(given)[:80]}: allowed are {{"type": "auto"}}, none, any and '
            '{"type": "tool", "name": NAME}, or have it ignored: environment.ignore=[tool_choice]',
            param="tool_choice",
            code="unsupported_value",
        )
    flag(given.get("disable_parallel_tool_use", False), "tool_choice.disable_parallel_tool_use")
    choice: Mapping[str, Any] = given
    return choice


def _schema(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the JSON schema of the requested text. output_config.effort is a hint and has no effect."""
    config = given.get("output_config", {})
    if not isinstance(config, dict) or not config.keys() <= {"format", "effort"}:
        raise ChatRefused(
            "output_config must be an object with format or effort, or have it ignored: "
            "environment.ignore=[output_config]",
            param="output_config",
        )
    key = "output_format" if config.get("format") is None else "output_config"
    return schema_of(config.get("format") or given.get("output_format"), key)


def _function(given: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(given, dict) or given.get("type") not in (None, "custom"):
        raise ChatRefused(f'{where} must be {{"name": ..., "input_schema": ...}}, a tool of the client', param=where)
    return given


def _messages(given: Any, system: Any) -> tuple[ChatMessage, ...]:
    history = History("tool_use_id")
    if system is not None:
        history.say("system", content(system, "system", "text"), "system")
    for i, message in enumerate(items(given, "messages")):
        where = f"messages[{i}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant"):
            raise ChatRefused(f"{where} must have one of the roles user, assistant", param=where)
        blocks = _blocks(message.get("content"), where)
        special = ("tool_use", *_THOUGHTS) if role == "assistant" else ("tool_result",)
        own = [block for block in blocks if block["type"] == special[0]]
        texts = [block for block in blocks if block["type"] not in special]
        said = content(texts, where, "text")
        if role == "assistant":
            history.act(said, [_call(block, where) for block in own], where)
            continue
        for block in own:
            history.reply(block.get("tool_use_id"), content(block.get("content"), where, "text"), where)
        if texts or not blocks:
            history.say("user", said, where)
    return history.messages("messages")


def _blocks(given: Any, where: str) -> list[dict[str, Any]]:
    blocks = [{"type": "text", "text": given}] if isinstance(given, str) else given
    if not isinstance(blocks, list) or not all(isinstance(b, dict) and isinstance(b.get("type"), str) for b in blocks):
        raise ChatRefused(f"{where}.content must be a text, or a list of blocks that have a type", param=where)
    return blocks


def _call(block: Mapping[str, Any], where: str) -> tuple[str, str, str]:
    if not isinstance(block.get("input"), dict):
        raise ChatRefused(f"{where}: the input of a tool_use must be an object", param=where)
    name, of = text(block.get("name"), f"{where}.name"), text(block.get("id"), f"{where}.id")
    return of, name, json.dumps(block["input"])


# --- answers


def _document_of(answer: ChatAnswer, asked: ChatRequest, created: int) -> dict[str, Any]:
    usage = {**_usage(answer), "output_tokens": answer.num_tokens}
    return _document(answer, asked, content=_content(answer), **_end(answer), usage=usage)


def _document(answer: ChatAnswer, asked: ChatRequest, **changing: Any) -> dict[str, Any]:
    head = {"id": f"msg_{answer.number}", "type": "message", "role": "assistant", "model": asked.model}
    return {**head, **changing}


def _content(answer: ChatAnswer) -> list[dict[str, Any]]:
    """Return the blocks of an answer: reasoning, text and each call."""
    blocks: list[dict[str, Any]] = []
    if answer.turn.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.turn.reasoning, "signature": ""})
    if answer.content:
        blocks.append({"type": "text", "text": answer.content, "citations": None})
    blocks += [
        {"type": "tool_use", "id": f"toolu_{answer.number}_{i}", "name": call.name, "input": dict(call.arguments)}
        for i, call in enumerate(answer.calls)
    ]
    return blocks


def _end(answer: ChatAnswer) -> dict[str, Any]:
    reason = "tool_use" if answer.calls else "max_tokens" if answer.is_cut else "end_turn"
    reason = "stop_sequence" if answer.stop is not None and not answer.calls else reason
    return {"stop_reason": reason, "stop_sequence": answer.stop if reason == "stop_sequence" else None}


def _usage(answer: ChatAnswer) -> dict[str, int]:
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": answer.num_prompt_tokens, **cached, "output_tokens": 0}


def _events_of(answer: ChatAnswer, asked: ChatRequest, created: int) -> Iterator[str]:
    """Yield the beginning, each block and the end."""
    begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(answer)}
    yield _event("message_start", message=_document(answer, asked, **begun))
    for index, block in enumerate(_content(answer)):
        empty, delta = _in_pieces(block)
        yield _event("content_block_start", index=index, content_block=empty)
        yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    yield _event("message_delta", delta=_end(answer), usage={"output_tokens": answer.num_tokens})
    yield _event("message_stop")


def _in_pieces(block: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the block without its content, and a delta with the content."""
    if block["type"] == "tool_use":
        return {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    key = block["type"]
    return {**block, key: ""}, {"type": f"{key}_delta", key: block[key]}


def _event(kind: str, **event: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **event})}\n\n"


def _error_of(refused: ChatRefused) -> Mapping[str, Any]:
    kind = _KINDS.get(refused.status, "api_error" if refused.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(refused)}}


MESSAGES = ProgramDialect(
    path="/messages",
    request_of=_request_of,
    document_of=_document_of,
    events_of=_events_of,
    error_of=_error_of,
)
