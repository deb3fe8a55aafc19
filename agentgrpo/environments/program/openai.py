"""OpenAI's chat completions, from the server's side: any JSON in, a request or a refusal out; a turn in, an answer out.

A parameter that changes what is sampled is honoured or refused by name, never left out silently.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgrpo.core.messages import MalformedCall, ToolSpec
from agentgrpo.core.types import FinishReason, Role, ToolCall
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.base import Turn

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_READ = frozenset({"messages", "model", "tools", "tool_choice", "stream", "stream_options", "n", "stop"})
_READ |= {"max_tokens", "max_completion_tokens", "temperature", "top_p"}
_HARMLESS: Mapping[str, Sequence[object]] = {
    "n": (1,),
    "parallel_tool_calls": (True,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
    "modalities": (["text"],),
}
"""Parameter -> values that ask for nothing but what is done anyway."""
_SILENT = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
"""Parameters that say nothing of what is sampled."""
_MAX_DEPTH = 64
_ANY_ARGUMENTS = {"type": "object", "properties": {}}


class ChatRefused(Exception):
    """A request that is not answered. `document` is what its client reads."""

    def __init__(self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    @property
    def document(self) -> Mapping[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """A message of a request, in the one form by which two are compared: content as text, arguments as values."""

    role: Role
    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """(name, arguments as JSON with sorted keys), in order."""
    answers: int | None = None
    """Of a tool's message: which of the calls before it, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    messages: tuple[ChatMessage, ...]
    model: str
    tools: tuple[ToolSpec, ...] | None
    """None = none are on offer."""
    tools_key: str
    """Equal for equal tools."""
    stop: tuple[str, ...]
    max_tokens: int | None
    stream: bool
    include_usage: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """A sampled turn on its way to the client."""

    turn: Turn
    said: ChatMessage
    """As the client will send it back."""
    content: str
    number: int
    """Of the episode's answers, from 0."""
    num_prompt_tokens: int


# --- requests


def request_of(body: bytes, *, sampling: SamplingParams, ignored: Collection[str]) -> ChatRequest:
    """sampling: of the run, which the request may not change. ignored: parameters that are overlooked. Raises
    ChatRefused."""
    asked = _object(body)
    given = {key: value for key, value in asked.items() if value is not None and key not in ignored}
    _refuse_others(given, sampling)
    tools = _tools(given.get("tools"))
    if given.get("tool_choice") == "none":
        tools = ()
    options = given.get("stream_options", {})
    if not isinstance(options, dict):
        raise ChatRefused("stream_options must be an object", param="stream_options")
    limits = [_count(given[key], key) for key in ("max_tokens", "max_completion_tokens") if key in given]
    return ChatRequest(
        messages=_messages(given.get("messages")),
        model=_text(given.get("model", ""), "model"),
        tools=tuple(_spec(tool, f"tools[{i}]") for i, tool in enumerate(tools)) or None,
        tools_key=json.dumps(tools, sort_keys=True),
        stop=_stop(given.get("stop", [])),
        max_tokens=min(limits, default=None),
        stream=_flag(given.get("stream", False), "stream"),
        include_usage=_flag(options.get("include_usage", False), "stream_options.include_usage"),
    )


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
        json.dumps(value, ensure_ascii=False).encode()  # no half of a surrogate pair, which is no text
    except (ValueError, RecursionError) as e:
        raise ChatRefused(f"the body is not JSON: {e}") from e
    if not isinstance(value, dict):
        raise ChatRefused("the body must be a JSON object with messages")
    _refuse_depth(value)
    return value


def _refuse_depth(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ChatRefused(f"the body is nested more than {_MAX_DEPTH} levels deep")


def _refuse_others(given: Mapping[str, Any], sampling: SamplingParams) -> None:
    """What would change the sampling of the run, by name."""
    for key, own in (("temperature", sampling.temperature), ("top_p", sampling.top_p)):
        if key in given and (isinstance(given[key], bool) or given[key] != own):
            raise ChatRefused(
                f"{key}={given[key]!r}: this run samples with {key}={own:g}, and trains on what it samples; leave it "
                f"out, say the same, or have it overlooked: environment.ignore=[{key}]",
                param=key,
                code="unsupported_value",
            )
    for key, value in given.items():
        if key in _HARMLESS and not any(value == harmless for harmless in _HARMLESS[key]):
            allowed = " or ".join(json.dumps(harmless) for harmless in _HARMLESS[key])
            raise ChatRefused(
                f"{key}={json.dumps(value)[:80]} is not supported; allowed is {allowed}, or have it overlooked: "
                f"environment.ignore=[{key}]",
                param=key,
                code="unsupported_value",
            )
        if key not in _READ and key not in _HARMLESS and key not in _SILENT:
            raise ChatRefused(
                f"unknown parameter {key[:80]!r}; leave it out, or have it overlooked: environment.ignore=[{key[:80]}]",
                param=key[:80],
                code="unknown_parameter",
            )


def _messages(given: Any) -> tuple[ChatMessage, ...]:
    if not isinstance(given, list) or not given:
        raise ChatRefused("messages must be a list with at least one message", param="messages")
    said: list[ChatMessage] = []
    ids: list[str] = []  # of the calls that wait for an answer
    left: set[int] = set()
    for i, message in enumerate(given):
        where = f"messages[{i}]"
        role = _ROLES.get(str(message.get("role"))) if isinstance(message, dict) else None
        if role is None:
            raise ChatRefused(f"{where} must have one of the roles {', '.join(_ROLES)}", param=where)
        if left and role != "tool":
            raise ChatRefused(f"{where}: the call {ids[min(left)]!r} before it was not answered", param=where)
        content = _content(message.get("content"), where)
        if role == "tool":
            call = message.get("tool_call_id")
            answers = next((n for n in sorted(left) if ids[n] == call), None)
            if answers is None:
                raise ChatRefused(f"{where}: tool_call_id {call!r} is that of no call before it", param=where)
            left.discard(answers)
            said.append(ChatMessage(role=role, content=content, answers=answers))
        elif role == "assistant":
            calls, ids = _calls(message.get("tool_calls"), where)
            left = set(range(len(calls)))
            said.append(ChatMessage(role=role, content=content.strip(), calls=calls))
        else:
            said.append(ChatMessage(role=role, content=content))
    if said[-1].role == "assistant":
        raise ChatRefused("the last message is the assistant's; the policy answers a user or a tool", param="messages")
    return tuple(said)


def _content(given: Any, where: str) -> str:
    if given is None:
        return ""
    if isinstance(given, str):
        return given
    if isinstance(given, list):
        texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in given]
        if all(isinstance(text, str) for text in texts):
            return "".join(map(str, texts))
    raise ChatRefused(f"{where}.content must be a text, or a list of parts of type text", param=where)


def _calls(given: Any, where: str) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """(name, arguments), and the id of each."""
    if given is None:
        return (), []
    calls, ids = [], []
    for call in given if isinstance(given, list) else [given]:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(call.get("id"), str):
            raise ChatRefused(f"{where}.tool_calls must be calls of functions, each with an id", param=where)
        name = _text(function.get("name"), f"{where}.tool_calls.function.name")
        arguments = _text(function.get("arguments"), f"{where}.tool_calls.function.arguments")
        calls.append((name, _compared(arguments)))
        ids.append(call["id"])
    return tuple(calls), ids


def _compared(arguments: str) -> str:
    """Equal for equal values, however they are written."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _tools(given: Any) -> Sequence[Any]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise ChatRefused("tools must be a list", param="tools")
    return given


def _spec(tool: Any, where: str) -> ToolSpec:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if not isinstance(function, dict):
        raise ChatRefused(f'{where} must be {{"type": "function", "function": {{...}}}}', param=where)
    parameters = function.get("parameters") or _ANY_ARGUMENTS
    properties = parameters.get("properties") or {} if isinstance(parameters, dict) else None
    if not isinstance(properties, dict) or not all(isinstance(schema, dict) for schema in properties.values()):
        raise ChatRefused(f"{where}.function.parameters must be a JSON schema of an object's properties", param=where)
    name = _text(function.get("name"), f"{where}.function.name")
    description = _text(function.get("description") or "", f"{where}.function.description")
    return ToolSpec(name=name, description=description, parameters=parameters)


def _stop(given: Any) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise ChatRefused("stop must be a text or a list of texts, none of them empty", param="stop")
    return tuple(texts)


def _count(given: Any, key: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ChatRefused(f"{key}={json.dumps(given)[:80]}: a whole number, 1 or more, is needed", param=key)
    return given


def _flag(given: Any, key: str) -> bool:
    if not isinstance(given, bool):
        raise ChatRefused(f"{key} must be true or false", param=key)
    return given


def _text(given: Any, key: str) -> str:
    if not isinstance(given, str):
        raise ChatRefused(f"{key} must be a text", param=key)
    return given


# --- answers


def answer_of(turn: Turn, *, number: int, num_prompt_tokens: int, stop: Sequence[str]) -> ChatAnswer:
    """What cannot be read as a call is shown as it was sampled: text."""
    unread = [call.text for call in turn.calls if isinstance(call, MalformedCall)]
    content = "\n".join(filter(None, [turn.content if turn.answer is None else turn.answer, *unread]))
    content = min((content.partition(text)[0] for text in stop), key=len, default=content)
    calls = tuple((call.name, json.dumps(dict(call.arguments), sort_keys=True)) for call in calls_of(turn))
    return ChatAnswer(
        turn=turn,
        said=ChatMessage(role="assistant", content=content.strip(), calls=calls),
        content=content,
        number=number,
        num_prompt_tokens=num_prompt_tokens,
    )


def calls_of(turn: Turn) -> list[ToolCall]:
    """Those that can be made."""
    return [call for call in turn.calls if isinstance(call, ToolCall)]


def document_of(answer: ChatAnswer, asked: ChatRequest, *, created: int) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    message = {"role": "assistant", **_delta(answer)}
    message.setdefault("content", None)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(answer)}
    head = _head(answer, asked, "chat.completion", created)
    return {**head, "choices": [choice], "usage": _usage(answer)}


def chunks_of(answer: ChatAnswer, asked: ChatRequest, *, created: int) -> Iterator[str]:
    """The same as server-sent events: the role, the content, each call, the end."""
    head = _head(answer, asked, "chat.completion.chunk", created)
    head |= {"usage": None} if asked.include_usage else {}
    whole = _delta(answer)
    calls = whole.pop("tool_calls", [])
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{key: text} for key, text in whole.items() if text]
    deltas += [{"tool_calls": [{"index": i, **call}]} for i, call in enumerate(calls)]
    for delta in deltas:
        yield _event({**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]})
    end = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": _finish_reason(answer)}
    yield _event({**head, "choices": [end]})
    if asked.include_usage:
        yield _event({**head, "choices": [], "usage": _usage(answer)})
    yield "data: [DONE]\n\n"


def _delta(answer: ChatAnswer) -> dict[str, Any]:
    calls = calls_of(answer.turn)
    delta: dict[str, Any] = {"content": answer.content} if answer.content or not calls else {}
    if answer.turn.reasoning:
        delta["reasoning_content"] = answer.turn.reasoning
    if calls:
        delta["tool_calls"] = [
            {
                "id": f"call_{answer.number}_{i}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
            }
            for i, call in enumerate(calls)
        ]
    return delta


def _finish_reason(answer: ChatAnswer) -> str:
    if calls_of(answer.turn):
        return "tool_calls"
    return "length" if answer.turn.finish_reason is FinishReason.LENGTH else "stop"


def _head(answer: ChatAnswer, asked: ChatRequest, kind: str, created: int) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.number}", "object": kind, "created": created, "model": asked.model}


def _usage(answer: ChatAnswer) -> dict[str, int]:
    prompt, sampled = answer.num_prompt_tokens, len(answer.turn.token_ids)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _event(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"
