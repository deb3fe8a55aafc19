"""Requests of programs and answers of the policy, in a form common to all HTTP dialects: any JSON in, a request or a
refusal out. A dialect reads and writes them (dialects/); a session answers them.

A parameter that changes what is sampled is honoured or refused by name, never dropped silently. A seed is accepted
without effect, because the run has its own; so is a hint at how long to think, because the policy was not trained on
such hints.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from agentgrpo.core.messages import MalformedCall, ToolSpec
from agentgrpo.core.types import FinishReason, Role, ToolCall
from agentgrpo.core.untrusted import read_body
from agentgrpo.engines.base import SamplingParams
from agentgrpo.engines.grammar import problem_of
from agentgrpo.environments.base import Turn
from agentgrpo.renderers.form import TurnForm
from agentgrpo.renderers.qwen3 import END_THINK, THINK

_MAX_DEPTH = 64
_MOST_STOPS, _LONGEST_STOP = 64, 1000
"""Limits on stop strings: each one is searched for at every token."""
_ANY_ARGUMENTS = {"type": "object", "properties": {}}
COMMON = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"}
)
"""Parameters that frameworks set by themselves; environment.ignore=common ignores them."""


class ChatRefused(Exception):
    """A refused request. code, param: as in OpenAI's errors."""

    def __init__(self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """A message of a request in the form in which messages are compared: content as text, arguments as values."""

    role: Role
    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """(name, arguments as JSON with sorted keys), in order."""
    answers: int | None = None
    """For a tool's message: index of the call it answers, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    messages: tuple[ChatMessage, ...]
    model: str
    tools: tuple[ToolSpec, ...] | None
    """None = no tools are offered."""
    tools_key: str
    """Equal for tools that are described to the policy in the same way."""
    is_parallel: bool = True
    """Whether every call of a turn is returned; if not, only the first is."""
    form: TurnForm | None = None
    """Form that the answer is held to; None = any answer."""
    stop: tuple[str, ...] = ()
    max_tokens: int | None
    stream: bool
    include_usage: bool = True
    """A stream ends with the token counts."""
    items: tuple[Mapping[str, Any], ...] = ()
    """For a dialect that stores items (see Stored): all items of this request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """A sampled turn on its way to the client."""

    turn: Turn
    said: ChatMessage
    """The message as the client will send it back."""
    content: str
    stop: str | None
    """The request's stop string that ended the turn."""
    number: int
    """Index among the episode's answers, from 0."""
    num_prompt_tokens: int
    calls: list[ToolCall]
    """Calls that the client is to make."""
    unmade: list[ToolCall]
    """Calls after the first, for a client that makes one call a turn."""

    @property
    def num_tokens(self) -> int:
        return len(self.turn.token_ids)

    @property
    def is_cut(self) -> bool:
        """Whether a token limit ended the turn before any call."""
        return self.turn.finish_reason is FinishReason.LENGTH and not self.calls


Stored: TypeAlias = Mapping[str, Sequence[Mapping[str, Any]]]
"""Id -> items: for an item, the item itself; for an answer, all items up to the end of that answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramDialect:
    """How a dialect reads requests and writes answers and errors."""

    path: str
    """Path below /v1."""
    request_of: Callable[[bytes, SamplingParams, Collection[str], Stored], ChatRequest]
    """(body, the run's sampling, which the request may not change, ignored parameters, items that it may refer to) ->
    the request. Raises ChatRefused."""
    document_of: Callable[[ChatAnswer, ChatRequest, int], Mapping[str, Any]]
    """(answer, request, seconds since 1970) -> the body of an answer that is not streamed."""
    events_of: Callable[[ChatAnswer, ChatRequest, int], Iterator[str]]
    """Like document_of, as server-sent events."""
    error_of: Callable[[ChatRefused], Mapping[str, Any]]


# --- parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The parameters of a dialect; any other parameter is refused."""

    read: Collection[str]
    harmless: Mapping[str, Sequence[object]]
    """Parameter -> values that ask for the standard behaviour."""
    silent: Collection[str]
    """Parameters that have no effect on sampling."""

    def of(self, body: bytes, sampling: SamplingParams, ignored: Collection[str]) -> Mapping[str, Any]:
        """Return the given parameters, without nulls and ignored ones. Raises ChatRefused."""
        overlooked = COMMON.union(ignored) if "common" in ignored else ignored
        given = {key: value for key, value in _object(body).items() if value is not None and key not in overlooked}
        own = _sampling_of(sampling)
        for key, value in given.items():
            if key in own:
                self._refuse_other(key, value, own[key])
            else:
                self._refuse(key, value)
        return given

    def _refuse_other(self, key: str, value: object, own: Sequence[float]) -> None:
        if isinstance(value, bool) or value not in own:
            raise ChatRefused(
                f"{key}={json.dumps(value)[:80]}: this run samples with {key}={own[0]:g}, and trains on what it "
                f"samples; leave it out, give the same value, or have it ignored: environment.ignore=[{key}], or "
                "environment.ignore=common for all that frameworks set by themselves",
                param=key,
                code="unsupported_value",
            )

    def _refuse(self, key: str, value: object) -> None:
        if key in self.harmless and not any(value == harmless for harmless in self.harmless[key]):
            allowed = " or ".join(map(json.dumps, self.harmless[key])) or "to leave it out"
            raise ChatRefused(
                f"{key}={json.dumps(value)[:80]} is not supported; allowed is {allowed}, or have it ignored: "
                f"environment.ignore=[{key}]",
                param=key,
                code="unsupported_value",
            )
        if not any(key in known for known in (self.read, self.harmless, self.silent)):
            raise ChatRefused(
                f"unknown parameter {key[:80]!r}; leave it out, or have it ignored: environment.ignore=[{key[:80]}]",
                param=key[:80],
                code="unknown_parameter",
            )


def _sampling_of(sampling: SamplingParams) -> Mapping[str, Sequence[float]]:
    """Return parameter -> the run's value, and other ways to write it."""
    return {
        "temperature": (sampling.temperature,),
        "top_p": (sampling.top_p,),
        "top_k": (sampling.top_k,) if sampling.top_k else (0, -1),
        "min_p": (sampling.min_p,),
    }


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        value = read_body(body)
        _refuse_odd([value])
    except (ValueError, RecursionError) as e:
        raise ChatRefused(f"the body is not JSON: {e}") from e
    if not isinstance(value, dict):
        raise ChatRefused("the body must be a JSON object with messages")
    return value


def _refuse_odd(level: list[Any]) -> None:
    """Raises ChatRefused for JSON nested too deeply, and ValueError for an unpaired surrogate."""
    for _ in range(_MAX_DEPTH + 1):
        inside: list[Any] = []
        for value in level:
            if isinstance(value, str):
                value.encode()
            elif isinstance(value, dict):
                inside += value
                inside += value.values()
            elif isinstance(value, list):
                inside += value
        if not inside:
            return
        level = inside
    raise ChatRefused(f"the body is nested more than {_MAX_DEPTH} levels deep")


def text(given: object, key: str) -> str:
    if not isinstance(given, str):
        raise ChatRefused(f"{key} must be a text", param=key)
    return given


def flag(given: object, key: str) -> bool:
    if not isinstance(given, bool):
        raise ChatRefused(f"{key} must be true or false", param=key)
    return given


def count(given: object, key: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ChatRefused(f"{key}={json.dumps(given)[:80]}: a whole number, 1 or more, is needed", param=key)
    return given


def stops(given: object, key: str) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(each, str) and each for each in texts):
        raise ChatRefused(f"{key} must be a text or a list of texts, none of them empty", param=key)
    if len(texts) > _MOST_STOPS or any(len(each) > _LONGEST_STOP for each in texts):
        raise ChatRefused(
            f"{key} has {len(texts)} texts, the longest of {max(map(len, texts))} characters; at most {_MOST_STOPS} of "
            f"at most {_LONGEST_STOP} characters are allowed",
            param=key,
        )
    return tuple(texts)


def items(given: object, key: str) -> list[Any]:
    """Return the items of a list that may be left out."""
    if given is None:
        return []
    if not isinstance(given, list):
        raise ChatRefused(f"{key} must be a list", param=key)
    return given


def content(given: object, where: str, *types: str) -> str:
    """Return the text of `given`: a string, or a list of text parts of these types."""
    if given is None:
        return ""
    if isinstance(given, str):
        return given
    if isinstance(given, list):
        texts = [part.get("text") if isinstance(part, dict) and part.get("type") in types else None for part in given]
        if all(isinstance(each, str) for each in texts):
            return "".join(map(str, texts))
    raise ChatRefused(f"{where}.content must be a text, or a list of parts of type {' or '.join(types)}", param=where)


def tool(function: Mapping[str, Any], schema: str, where: str) -> ToolSpec:
    """Return the tool. schema: the key of its parameters."""
    parameters = function.get(schema) or _ANY_ARGUMENTS
    properties = parameters.get("properties") or {} if isinstance(parameters, dict) else None
    if not isinstance(properties, dict) or not all(isinstance(each, dict) for each in properties.values()):
        raise ChatRefused(f"{where}.{schema} must be a JSON schema of an object's properties", param=where)
    name = text(function.get("name"), f"{where}.name")
    return ToolSpec(
        name=name, description=text(function.get("description") or "", f"{where}.description"), parameters=parameters
    )


def schema_of(form: object, key: str, *, schema: str = "schema") -> Mapping[str, Any] | None:
    """Return the JSON schema of a requested answer; None if a plain text is requested. schema: the path of the schema
    in a json_schema form."""
    kind = form.get("type") if isinstance(form, dict) else form
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return _ANY_ARGUMENTS
    value: Any = form if kind == "json_schema" else None
    for part in schema.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if not isinstance(value, dict):
        raise ChatRefused(
            f'{key}={json.dumps(form)[:80]}: allowed are {{"type": "text"}}, {{"type": "json_object"}} and '
            f'{{"type": "json_schema"}} with an object under {schema}, or have it ignored: '
            f"environment.ignore=[{key}]",
            param=key,
            code="unsupported_value",
        )
    return value


def form_of(
    schema: Mapping[str, Any] | None, tools: Sequence[ToolSpec], *, forced: bool | str, key: str
) -> TurnForm | None:
    """Return the form of a requested answer; None if any answer will do. schema: the schema of its text. forced: the
    name of the tool that must be called, True for any tool. key: the parameter that forces a call."""
    if forced is False:
        form = None if schema is None else TurnForm(schema=schema, tools=tuple(tools))
    else:
        called = tuple(each for each in tools if forced is True or each.name == forced)
        if not called:
            names = ", ".join(each.name for each in tools) or "none"
            wanted = "a call" if forced is True else f"a call of {forced!r}"
            raise ChatRefused(
                f"{key} asks for {wanted}; tools on offer: {names}; offer it, or have {key} ignored: "
                f"environment.ignore=[{key}]",
                param=key,
            )
        form = TurnForm(schema=None, tools=called)
    if form is not None:
        schemas = {"the answer's": form.schema} | {f"the tool {each.name!r}'s": each.parameters for each in form.tools}
        for whose, part in schemas.items():
            if part is not None and (problem := problem_of(part)):
                raise ChatRefused(f"{whose} JSON schema cannot be enforced: {problem}", param=key)
    return form


def key_of(tools: Sequence[ToolSpec]) -> str:
    """Return ChatRequest.tools_key: the tools' names, descriptions and parameters as JSON."""
    return json.dumps([(each.name, each.description, each.parameters) for each in tools], sort_keys=True)


# --- messages


class History:
    """A request's messages, read one after another. Every method raises ChatRefused."""

    def __init__(self, call_key: str) -> None:
        """call_key: the field in which a reply names its call."""
        self._call_key = call_key
        self._said: list[ChatMessage] = []
        self._left: dict[str, list[int]] = {}  # id of an unanswered call -> its indices, last first

    def say(self, role: Role, said: str, where: str) -> None:
        """Add a message of the system or a user."""
        self._refuse_unanswered(where)
        self._said.append(ChatMessage(role=role, content=said))

    def reply(self, call: object, said: str, where: str) -> None:
        places = self._left.get(call) if isinstance(call, str) else None
        if places is None:
            raise ChatRefused(f"{where}: {self._call_key} {str(call)[:80]!r} belongs to no earlier call", param=where)
        self._said.append(ChatMessage(role="tool", content=said, answers=places.pop()))
        if not places:
            del self._left[str(call)]

    def act(self, said: str, calls: Sequence[tuple[str, str, str]], where: str) -> None:
        """Add a message of the assistant. calls: (id, name, arguments as JSON)."""
        self._refuse_unanswered(where)
        made = tuple((name, _compared(arguments)) for _, name, arguments in calls)
        for place, (call, _, _) in reversed(list(enumerate(calls))):
            self._left.setdefault(call, []).append(place)
        self._said.append(ChatMessage(role="assistant", content=said.strip(), calls=made))

    def messages(self, key: str) -> tuple[ChatMessage, ...]:
        """Return all messages. Raises ChatRefused for an empty list, and if the last message is the assistant's."""
        if not self._said:
            raise ChatRefused(f"{key} must be a list with at least one message", param=key)
        if self._said[-1].role == "assistant":
            raise ChatRefused("the last message is the assistant's; the policy answers a user or a tool", param=key)
        return tuple(self._said)

    def _refuse_unanswered(self, where: str) -> None:
        if self._left:
            unanswered = min(self._left, key=lambda call: self._left[call][-1])
            raise ChatRefused(f"{where}: the call {unanswered[:80]!r} before it was not answered", param=where)


def _compared(arguments: str) -> str:
    """Return a form that is equal for equal values, however they are written."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


# --- answers


def answer_of(turn: Turn, *, number: int, num_prompt_tokens: int, asked: ChatRequest) -> ChatAnswer:
    """Return the answer that a sampled turn gives. A malformed call is shown as the sampled text; so is any call if no
    tools are offered."""
    made = [call for call in turn.calls if isinstance(call, ToolCall)] if asked.tools is not None else []
    unread = [call.text for call in turn.calls if isinstance(call, MalformedCall)]
    said = "\n".join(filter(None, [turn.content if turn.answer is None else turn.answer, *unread]))
    whole = _without_reasoning(turn)
    cuts = [(whole.partition(each)[0], each) for each in asked.stop if each in whole]
    before, stop = min(cuts, key=lambda cut: len(cut[0]), default=(whole, None))
    shown = before if not made and (stop is not None or turn.calls) else said
    made, unmade = (made, []) if asked.is_parallel else (made[:1], made[1:])
    calls = tuple((call.name, json.dumps(dict(call.arguments), sort_keys=True)) for call in made)
    return ChatAnswer(
        turn=turn,
        said=ChatMessage(role="assistant", content=shown.strip(), calls=calls),
        content=shown,
        stop=stop,
        number=number,
        num_prompt_tokens=num_prompt_tokens,
        calls=made,
        unmade=unmade,
    )


def _without_reasoning(turn: Turn) -> str:
    _, thought, rest = turn.written.partition(turn.reasoning or THINK)
    return rest.strip().removeprefix(END_THINK).strip() if thought else turn.written.strip()
