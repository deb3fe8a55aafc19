"""ChatML with Hermes-style calls (Qwen2.5, Hermes):

<|im_start|>assistant
text
<tool_call>
{"name": "lookup", "arguments": {"key": "nut"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
41
</tool_response><|im_end|>
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgrpo.core.messages import AnyCall, MalformedCall, ParsedTurn
from agentgrpo.renderers.calls import malformed, one_call, written
from agentgrpo.renderers.family import ChatFamily, Markup, Span, in_lines

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MARKUP = Markup(
    end="<|im_end|>",
    opener="<|im_start|>assistant\n",
    replies=("\n<|im_start|>user\n", "<|im_end|>\n"),
    reply=("<tool_response>\n", "\n</tool_response>"),
    between="\n",
    word=("\n<|im_start|>user\n", "<|im_end|>\n"),
)
_ARGUMENTS = ("arguments", "parameters")


def read(spans: Sequence[Span], markup: Markup) -> ParsedTurn:
    calls: list[AnyCall] = []
    texts: list[str] = []
    begun: str | None = None  # the text of a call that is not closed yet
    for mark, text in spans:
        if mark == CLOSE and begun is not None:
            calls.append(one_call(begun, argument_keys=_ARGUMENTS, whole=f"{OPEN}{begun}{CLOSE}"))
        elif mark == CLOSE:
            before = texts.pop() if texts else ""
            calls.append(malformed(f"{before}{CLOSE}", f"{CLOSE} without {OPEN} before it"))
        elif begun is not None:
            calls.append(malformed(f"{OPEN}{begun}", f"a call within a call: end the first with {CLOSE}"))
        begun = text if mark == OPEN else None
        if mark != OPEN:
            texts.append(text)
    if begun is not None:
        calls.append(malformed(f"{OPEN}{begun}", f"the call does not end with {CLOSE}"))
    return ParsedTurn(calls=tuple(calls), content="".join(texts).strip())


def write(turn: ParsedTurn, markup: Markup) -> str:
    return in_lines(turn, _written)


def _written(call: AnyCall) -> str:
    return call.text if isinstance(call, MalformedCall) else f"{OPEN}\n{written(call, _ARGUMENTS[0])}\n{CLOSE}"


CHATML = ChatFamily(
    name="chatml",
    recognised_by=("<|im_start|>", OPEN),
    added=("<|im_start|>", "<|im_end|>"),
    ends=("<|im_end|>",),
    marks=(OPEN, CLOSE),
    markups=(MARKUP,),
    read=read,
    write=write,
)
