"""OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from agentgrpo.core.types import Role
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

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_PARAMETERS = Parameters(
    read=frozenset(
        {"messages", "model", "tools", "stream", "stream_options", "stop", "max_tokens", "max_completion_tokens"}
        | {"parallel_tool_calls", "response_format", "tool_choice"}
    ),
    harmless={
        "n": (1,),
        "best_of": (1,),
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "repetition_penalty": (1,),
        "length_penalty": (1,),
        "typical_p": (1,),
        "min_tokens": (0,),
        "use_beam_search": (False,),
        "ignore_eos": (False,),
        "echo": (False,),
        "chat_template_kwargs": ({},),
        "logprobs": (False,),
        "top_logprobs": (0,),
        "logit_bias": ({},),
        "modalities": (["text"],),
    },
    silent=frozenset(
        {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
        | {"seed", "reasoning_effort", "verbosity", "request_id", "priority", "cache_prompt"}
    ),
)


def _request_of(body: bytes, sampling: SamplingParams, ignored: Collection[str], stored: Stored) -> ChatRequest:
    given = _PARAMETERS.of(body, sampling, ignored)
    offers = [] if given.get("tool_choice") == "none" else items(given.get("tools"), "tools")
    tools = tuple(tool(_function(each, f"tools[{i}]"), "parameters", f"tools[{i}]") for i, each in enumerate(offers))
    schema = schema_of(given.get("response_format"), "response_format", schema="json_schema.schema")
    options = given.get("stream_options", {})
    if not isinstance(options, dict):
        raise ChatRefused("stream_options must be an object", param="stream_options")
    limits = [count(given[key], key) for key in ("max_tokens", "max_completion_tokens") if key in given]
    return ChatRequest(
        messages=_messages(given.get("messages")),
        model=text(given.get("model", ""), "model"),
        tools=tools or None,
        tools_key=key_of(tools),
        is_parallel=flag(given.get("parallel_tool_calls", True), "parallel_tool_calls"),
        form=form_of(schema, tools, forced=_forced(given.get("tool_choice")), key="tool_choice"),
        stop=stops(given.get("stop", []), "stop"),
        max_tokens=min(limits, default=None),
        stream=flag(given.get("stream", False), "stream"),
        include_usage=flag(options.get("include_usage", False), "stream_options.include_usage"),
    )


def _forced(choice: Any) -> bool | str:
    """See form_of."""
    if choice in (None, "auto", "none"):
        return False
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    if choice != "required" and not isinstance(function, dict):
        raise ChatRefused(
            f'tool_choice={json.dumps(choice)[:80]}: allowed are "auto", "none", "required" and '
            '{"type": "function", "function": {"name": NAME}}, or have it ignored: environment.ignore=[tool_choice]',
            param="tool_choice",
            code="unsupported_value",
        )
    return True if function is None else text(function.get("name"), "tool_choice.function.name")


def _function(given: Any, where: str) -> Mapping[str, Any]:
    function = given.get("function") if isinstance(given, dict) and given.get("type") == "function" else None
    if not isinstance(function, dict):
        raise ChatRefused(f'{where} must be {{"type": "function", "function": {{...}}}}', param=where)
    return function


def _messages(given: Any) -> tuple[ChatMessage, ...]:
    history = History("tool_call_id")
    for i, message in enumerate(items(given, "messages")):
        where = f"messages[{i}]"
        role = _ROLES.get(str(message.get("role"))) if isinstance(message, dict) else None
        if role is None:
            raise ChatRefused(f"{where} must have one of the roles {', '.join(_ROLES)}", param=where)
        said = content(message.get("content"), where, "text")
        if role == "tool":
            history.reply(message.get("tool_call_id"), said, where)
        elif role == "assistant":
            history.act(said, _calls(message.get("tool_calls"), where), where)
        else:
            history.say(role, said, where)
    return history.messages("messages")


def _calls(given: Any, where: str) -> list[tuple[str, str, str]]:
    calls = []
    for call in items(given, f"{where}.tool_calls"):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(call.get("id"), str):
            raise ChatRefused(f"{where}.tool_calls must be calls of functions, each with an id", param=where)
        name = text(function.get("name"), f"{where}.tool_calls.function.name")
        calls.append((call["id"], name, text(function.get("arguments"), f"{where}.tool_calls.function.arguments")))
    return calls


# --- answers


def _document_of(answer: ChatAnswer, asked: ChatRequest, created: int) -> dict[str, Any]:
    message = {"role": "assistant", **_delta(answer)}
    message.setdefault("content", None)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(answer)}
    head = _head(answer, asked, "chat.completion", created)
    return {**head, "choices": [choice], "usage": _usage(answer)}


def _events_of(answer: ChatAnswer, asked: ChatRequest, created: int) -> Iterator[str]:
    """Yield the role, the content, each call and the end."""
    head = _head(answer, asked, "chat.completion.chunk", created)
    head |= {"usage": None} if asked.include_usage else {}
    whole = _delta(answer)
    calls = whole.pop("tool_calls", [])
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{key: part} for key, part in whole.items() if part]
    deltas += [{"tool_calls": [{"index": i, **call}]} for i, call in enumerate(calls)]
    for delta in deltas:
        yield _event({**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]})
    end = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": _finish_reason(answer)}
    yield _event({**head, "choices": [end]})
    if asked.include_usage:
        yield _event({**head, "choices": [], "usage": _usage(answer)})
    yield "data: [DONE]\n\n"


def _delta(answer: ChatAnswer) -> dict[str, Any]:
    delta: dict[str, Any] = {"content": answer.content} if answer.content or not answer.calls else {}
    if answer.turn.reasoning:
        delta["reasoning_content"] = answer.turn.reasoning
    if answer.calls:
        delta["tool_calls"] = [
            {
                "id": f"call_{answer.number}_{i}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
            }
            for i, call in enumerate(answer.calls)
        ]
    return delta


def _finish_reason(answer: ChatAnswer) -> str:
    return "tool_calls" if answer.calls else "length" if answer.is_cut else "stop"


def _head(answer: ChatAnswer, asked: ChatRequest, kind: str, created: int) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.number}", "object": kind, "created": created, "model": asked.model}


def _usage(answer: ChatAnswer) -> dict[str, int]:
    prompt, sampled = answer.num_prompt_tokens, answer.num_tokens
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _event(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


def error_of(refused: ChatRefused) -> Mapping[str, Any]:
    """Return the body of OpenAI's error."""
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    return {"error": {"message": str(refused), "type": kind, "param": refused.param, "code": refused.code}}


CHAT = ProgramDialect(
    path="/chat/completions",
    request_of=_request_of,
    document_of=_document_of,
    events_of=_events_of,
    error_of=error_of,
)
