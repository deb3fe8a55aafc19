"""OpenAI's Responses. A request may refer by id to answers and items of the same episode."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from agentgrpo.core.types import Role
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.program.dialects.chat import error_of
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
    text,
    tool,
)

_PARAMETERS = Parameters(
    read=frozenset(
        {"input", "instructions", "model", "tools", "stream", "max_output_tokens", "parallel_tool_calls", "text"}
        | {"previous_response_id", "tool_choice"}
    ),
    harmless={
        "truncation": ("disabled",),
        "top_logprobs": (0,),
        "background": (False,),
        "include": ([], ["reasoning.encrypted_content"]),
        "conversation": (),
        "prompt": (),
    },
    silent=frozenset(
        {"metadata", "user", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
        | {"prompt_cache_retention", "stream_options", "reasoning"}
    ),
)
_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TEXTS = ("input_text", "output_text")
_EMPTY: Mapping[str, Mapping[str, Any]] = {
    "reasoning": {},
    "message": {"status": "in_progress", "content": []},
    "function_call": {"status": "in_progress", "arguments": ""},
}
"""Item type -> the fields that differ while the item is in progress."""


def _request_of(body: bytes, sampling: SamplingParams, ignored: Collection[str], stored: Stored) -> ChatRequest:
    given = _PARAMETERS.of(body, sampling, ignored)
    offers = [] if given.get("tool_choice") == "none" else items(given.get("tools"), "tools")
    tools = tuple(tool(_function(each, f"tools[{i}]"), "parameters", f"tools[{i}]") for i, each in enumerate(offers))
    most = given.get("max_output_tokens")
    told = given.get("text", {})  # how long it is to be (verbosity) is a hint
    schema = schema_of(told.get("format") if isinstance(told, dict) else told, "text")
    said = _items(given.get("input"), given.get("previous_response_id"), stored)
    return ChatRequest(
        messages=_messages(said, given.get("instructions")),
        items=said,
        model=text(given.get("model", ""), "model"),
        tools=tools or None,
        tools_key=key_of(tools),
        is_parallel=flag(given.get("parallel_tool_calls", True), "parallel_tool_calls"),
        form=form_of(schema, tools, forced=_forced(given.get("tool_choice")), key="tool_choice"),
        max_tokens=None if most is None else count(most, "max_output_tokens"),
        stream=flag(given.get("stream", False), "stream"),
    )


def _forced(choice: Any) -> bool | str:
    """Return the forced call as form_of takes it."""
    if choice in (None, "auto", "none", "required"):
        return bool(choice == "required")
    if not isinstance(choice, dict) or choice.get("type") != "function":
        raise ChatRefused(
            f'tool_choice={json.dumps(choice)[:80]}: allowed are "auto", "none", "required" and '
            '{"type": "function", "name": NAME}, or have it ignored: environment.ignore=[tool_choice]',
            param="tool_choice",
            code="unsupported_value",
        )
    return text(choice.get("name"), "tool_choice.name")


def _function(given: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(given, dict) or given.get("type") != "function":
        raise ChatRefused(f'{where} must be {{"type": "function", "name": ...}}', param=where)
    return given


def _items(given: Any, previous: object, stored: Stored) -> tuple[Mapping[str, Any], ...]:
    """Return the items of a request, with the referenced items in place of references."""
    if not given:
        raise ChatRefused("input must be a text, or a list with at least one item", param="input")
    said = [{"role": "user", "content": given}] if isinstance(given, str) else items(given, "input")
    found = [] if previous is None else list(_stored(previous, "previous_response_id", stored))
    for i, item in enumerate(said):
        is_reference = isinstance(item, dict) and item.get("type") == "item_reference"
        found += _stored(item.get("id"), f"input[{i}]", stored) if is_reference else [item]
    return tuple(found)


def _stored(named: object, where: str, stored: Stored) -> Sequence[Mapping[str, Any]]:
    found = stored.get(named) if isinstance(named, str) else None
    if found is None:
        raise ChatRefused(
            f"{where}: no answer of this episode has the id {json.dumps(named)[:80]}; send the items themselves",
            param=where,
            code="not_found",
        )
    return found


def _messages(said: Sequence[Any], instructions: Any) -> tuple[ChatMessage, ...]:
    """Return the messages. Adjacent items of the assistant form one turn: its text and each of its calls."""
    history = History("call_id")
    if instructions is not None:
        history.say("system", text(instructions, "instructions"), "instructions")
    texts: list[str] = []
    calls: list[tuple[str, str, str]] = []
    for i, item in enumerate([*said, None]):
        where = f"input[{i}]"
        kind, role = _kind(item, where) if i < len(said) else ("end", None)
        if kind == "function_call":
            calls.append(tuple(text(item.get(key), f"{where}.{key}") for key in ("call_id", "name", "arguments")))  # type: ignore[arg-type]
        elif role == "assistant":
            texts.append(content(item.get("content"), where, *_TEXTS))
        elif kind != "reasoning":
            if texts or calls:
                history.act("\n".join(texts), calls, f"input[{i - 1}]")
                texts, calls = [], []
            if kind == "function_call_output":
                history.reply(item.get("call_id"), content(item.get("output"), where, *_TEXTS), where)
            elif role is not None:
                history.say(role, content(item.get("content"), where, *_TEXTS), where)
    return history.messages("input")


def _kind(item: Any, where: str) -> tuple[str, Role | None]:
    """Return the type of an item, and the role if it is a message."""
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message":
        role = _ROLES.get(str(item.get("role")))
        if role is None:
            raise ChatRefused(f"{where} must have one of the roles {', '.join(_ROLES)}", param=where)
        return kind, role
    if kind not in ("function_call", "function_call_output", "reasoning"):
        raise ChatRefused(
            f"{where}: its type must be message, function_call, function_call_output or reasoning", param=where
        )
    return str(kind), None


# --- answers


def _document_of(answer: ChatAnswer, asked: ChatRequest, created: int) -> dict[str, Any]:
    ended = "incomplete" if answer.is_cut else "completed"
    return _document(answer, asked, created, status=ended, output=_output(answer, ended), usage=_usage(answer))


def _document(answer: ChatAnswer, asked: ChatRequest, created: int, **changing: Any) -> dict[str, Any]:
    is_cut = changing["status"] == "incomplete"
    return {
        "id": f"resp_{answer.number}",
        "object": "response",
        "created_at": created,
        "model": asked.model,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": None,
        "max_output_tokens": asked.max_tokens,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [
            {
                "type": "function",
                "name": each.name,
                "description": each.description,
                "parameters": each.parameters,
                "strict": False,
            }
            for each in asked.tools or ()
        ],
        "truncation": "disabled",
        **changing,
    }


def _output(answer: ChatAnswer, status: str) -> list[dict[str, Any]]:
    """Return the items of an answer: reasoning, text and each call."""
    output: list[dict[str, Any]] = []
    if answer.turn.reasoning:
        thought = {"type": "summary_text", "text": answer.turn.reasoning}
        output.append({"type": "reasoning", "id": f"rs_{answer.number}", "summary": [thought]})
    if answer.content or not answer.calls:
        said = {"type": "message", "id": f"msg_{answer.number}", "role": "assistant", "status": status}
        output.append({**said, "content": [_text(answer.content)]})
    output += [
        {
            "type": "function_call",
            "id": f"fc_{answer.number}_{i}",
            "call_id": f"call_{answer.number}_{i}",
            "name": call.name,
            "arguments": json.dumps(dict(call.arguments), ensure_ascii=False),
            "status": "completed",
        }
        for i, call in enumerate(answer.calls)
    ]
    return output


def _text(said: str) -> dict[str, Any]:
    return {"type": "output_text", "text": said, "annotations": [], "logprobs": []}


def _usage(answer: ChatAnswer) -> dict[str, Any]:
    return {
        "input_tokens": answer.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": answer.num_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.num_prompt_tokens + answer.num_tokens,
    }


def _events_of(answer: ChatAnswer, asked: ChatRequest, created: int) -> Iterator[str]:
    """Yield the beginning, each item with its parts, and the end."""
    begun = {"response": _document(answer, asked, created, status="in_progress", output=[], usage=None)}
    events: list[tuple[str, dict[str, Any]]] = [("created", begun), ("in_progress", begun)]
    whole = _document_of(answer, asked, created)
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index}
        events.append(("output_item.added", {**at, "item": {**item, **_EMPTY[item["type"]]}}))
        events += [(name, {"item_id": item["id"], **at, **event}) for name, event in _parts(item)]
        events.append(("output_item.done", {**at, "item": item}))
    events.append((whole["status"], {"response": whole}))
    for number, (name, event) in enumerate(events):
        data = {"type": f"response.{name}", "sequence_number": number, **event}
        yield f"event: response.{name}\ndata: {json.dumps(data)}\n\n"


def _parts(item: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if item["type"] == "message":
        [part], at = item["content"], {"content_index": 0}
        yield "content_part.added", {**at, "part": _text("")}
        if part["text"]:
            yield "output_text.delta", {**at, "delta": part["text"], "logprobs": []}
        yield "output_text.done", {**at, "text": part["text"], "logprobs": []}
        yield "content_part.done", {**at, "part": part}
    elif item["type"] == "function_call":
        yield "function_call_arguments.delta", {"delta": item["arguments"]}
        yield "function_call_arguments.done", {"arguments": item["arguments"], "name": item["name"]}


RESPONSES = ProgramDialect(
    path="/responses",
    request_of=_request_of,
    document_of=_document_of,
    events_of=_events_of,
    error_of=error_of,
)
