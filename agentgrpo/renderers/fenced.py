"""Chat templates without tools: tools are described in words, and calls are JSON in a code block.

    <start_of_turn>model
    ```tool_code
    {"name": "lookup", "arguments": {"key": "nut"}}
    ```<end_of_turn>
    <start_of_turn>user
    ```tool_output
    41
    ```<end_of_turn>

For Gemma's templates, which have no system role either, and ChatML templates without calls (SmolLM2, Phi-4, Yi). Blocks
named tool_call, function_call and json are read too, and so is a turn that consists of such an object.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from agentgrpo.core.messages import AnyCall, MalformedCall, ParsedTurn
from agentgrpo.renderers.calls import calls_in_row, malformed, seems_call, written
from agentgrpo.renderers.family import ChatFamily, Markup, Span, in_lines, spelled

ARGUMENTS = ("arguments", "parameters")
_FENCE = re.compile(r"^```([A-Za-z_0-9+-]*)[ \t]*$", re.MULTILINE)
_CALLS = ("tool_code", "tool_call", "function_call")


def read(spans: Sequence[Span], markup: Markup) -> ParsedTurn:
    text = spelled(spans)
    if seems_call(text):
        return ParsedTurn(calls=calls_in_row(text, argument_keys=ARGUMENTS))
    calls: list[AnyCall] = []
    rest: list[str] = []
    name, begin = "", 0  # name of the open block, and where its fence or the text outside blocks begins
    for fence in _FENCE.finditer(text):
        closes = bool(name) and not fence[1]
        end = fence.end() if closes else fence.start()
        _take(name, text[begin:end], closed=closes, calls=calls, rest=rest)
        name, begin = ("", fence.end()) if closes else (fence[1] or "text", fence.start())
    _take(name, text[begin:], closed=False, calls=calls, rest=rest)
    return ParsedTurn(calls=tuple(calls), content="".join(rest).strip())


def write(turn: ParsedTurn, markup: Markup) -> str:
    return in_lines(turn, _written)


def _take(name: str, text: str, *, closed: bool, calls: list[AnyCall], rest: list[str]) -> None:
    """Add a block, fences included, or the text between blocks to `calls` or `rest`."""
    inside = text.partition("\n")[2].removesuffix("```") if closed else text.partition("\n")[2]
    if name not in _CALLS and not (name == "json" and seems_call(inside)):
        rest.append(text)
    elif not closed:
        calls.append(malformed(text, "the code block of the call does not end with a line ```"))
    else:
        found = calls_in_row(inside, argument_keys=ARGUMENTS)
        calls.extend(_in_block(call) for call in found)
        if not found:
            calls.append(malformed(text, "the code block holds no call"))


def _in_block(call: AnyCall) -> AnyCall:
    """Return the call; a malformed call gets its block back, as it would be written."""
    return replace(call, text=_block(call.text.strip())) if isinstance(call, MalformedCall) else call


def _block(text: str) -> str:
    return f"```tool_code\n{text}\n```"


def _written(call: AnyCall) -> str:
    return call.text if isinstance(call, MalformedCall) else _block(written(call, ARGUMENTS[0]))


def _markup(end: str, user: str, policy: str, *, line: str = "\n") -> Markup:
    """`user` and `policy` open a turn, `end` closes it, and `line` is between turns."""
    told = (line + user, end + line)
    return Markup(end=end, opener=policy, replies=told, reply=("```tool_output\n", "\n```"), between="\n", word=told)


GEMMA = ChatFamily(
    name="gemma",
    recognised_by=("<start_of_turn>",),
    added=("<start_of_turn>", "<end_of_turn>"),
    ends=("<end_of_turn>",),
    marks=(),
    markups=(_markup("<end_of_turn>", "<start_of_turn>user\n", "<start_of_turn>model\n"),),
    has_tools=False,
    read=read,
    write=write,
)
_BEGIN, _END, _SEP = "<|im_start|>", "<|im_end|>", "<|im_sep|>"
CHATML_FENCED = ChatFamily(
    name="chatml_fenced",
    recognised_by=(_BEGIN,),
    added=(_BEGIN, _END),
    ends=(_END,),
    marks=(_SEP,),
    markups=(
        _markup(_END, f"{_BEGIN}user\n", f"{_BEGIN}assistant\n"),
        _markup(_END, f"{_BEGIN}user{_SEP}", f"{_BEGIN}assistant{_SEP}", line=""),  # Phi-4's
    ),
    has_tools=False,
    read=read,
    write=write,
)
