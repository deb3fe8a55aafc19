"""Llama 3.1 and later: a turn that is a JSON object with a name is a call.

    <|start_header_id|>assistant<|end_header_id|>

    {"name": "lookup", "parameters": {"key": "nut"}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>

    "41"<|eot_id|>

<|python_tag|> may come before it, and <|eom_id|> end it. Several objects, with ";" between them, are parallel calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentgrpo.core.messages import MalformedCall, ParsedTurn
from agentgrpo.renderers.calls import calls_in_row, malformed, seems_call, written
from agentgrpo.renderers.family import ChatFamily, Markup, Span, spelled

PYTHON = "<|python_tag|>"
ARGUMENTS = ("parameters", "arguments")


def _header(role: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n"


_RAW = Markup(
    end="<|eot_id|>",
    opener=_header("assistant"),
    reply=(_header("ipython"), "<|eot_id|>"),
    word=(_header("user"), "<|eot_id|>"),
)
_WRAPPED = replace(_RAW, reply=(_header("ipython") + '{"output": ', "}<|eot_id|>"), quoted=True)


def read(spans: Sequence[Span], markup: Markup) -> ParsedTurn:
    before, called = spans[0].text, spans[1:]
    if called:
        # a second tag belongs to the text after the first, which is then no JSON
        text = called[0].text + spelled(called[1:])
        calls = calls_in_row(text, argument_keys=ARGUMENTS)
        nothing = malformed(PYTHON + text, f"{PYTHON} is not followed by a call")
        return ParsedTurn(calls=calls or (nothing,), content=before.strip())
    if seems_call(before):
        return ParsedTurn(calls=calls_in_row(before, argument_keys=ARGUMENTS))
    return ParsedTurn(content=before.strip())


def write(turn: ParsedTurn, markup: Markup) -> str:
    calls = [c.text if isinstance(c, MalformedCall) else written(c, ARGUMENTS[0]) for c in turn.calls]
    text = f"{turn.content}{PYTHON}" if turn.content and calls else turn.content
    return text + (turn.answer or "") + "; ".join(calls)


LLAMA3 = ChatFamily(
    name="llama3",
    recognised_by=("<|start_header_id|>", "ipython"),
    added=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    ends=("<|eot_id|>", "<|eom_id|>"),
    marks=(PYTHON,),
    markups=(replace(_RAW, quoted=True), _WRAPPED, _RAW),  # the published template writes results as JSON strings
    read=read,
    write=write,
)
