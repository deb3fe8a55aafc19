"""Qwen3: ChatML calls after a block of reasoning.

    <|im_start|>assistant
    <think>
    reasoning
    </think>

    text
    <tool_call>
    ...

Its templates drop the reasoning of earlier turns when a conversation is rendered again. Here nothing is rendered again:
sampled tokens stay. Some templates open the block themselves; then the policy's turn begins inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentgrpo.core.messages import ParsedTurn
from agentgrpo.renderers import chatml
from agentgrpo.renderers.family import Markup, Span, spelled

THINK, END_THINK = "<think>", "</think>"


def read(spans: Sequence[Span], markup: Markup) -> ParsedTurn:
    reasoning, rest = _thoughts(spans, begun=_is_open(markup))
    return replace(chatml.read(rest, markup), reasoning=reasoning)


def write(turn: ParsedTurn, markup: Markup) -> str:
    text = chatml.write(turn, markup)
    if not turn.reasoning and not _is_open(markup):
        return text
    begin = "" if _is_open(markup) else f"{THINK}\n"
    return f"{begin}{turn.reasoning}\n{END_THINK}\n\n{text}"


def _is_open(markup: Markup) -> bool:
    """Return whether the policy's turn begins inside a block of reasoning."""
    return markup.opener.rstrip().endswith(THINK)


def _thoughts(spans: Sequence[Span], *, begun: bool) -> tuple[str, list[Span]]:
    """Return the text of the reasoning, and the spans outside it. A call inside is a thought, not a call."""
    blocks: list[list[Span]] = [[]] if begun else []
    rest: list[Span] = []
    for mark, text in spans:
        if mark == THINK:
            blocks.append([Span("", text)])
            begun = True
        elif mark == END_THINK:
            if not begun:  # the text so far was meant as reasoning
                blocks.append(rest)
                rest = []
            rest.append(Span("", text))
            begun = False
        else:
            (blocks[-1] if begun else rest).append(Span(mark, text))
    thoughts = (spelled(block).strip() for block in blocks)
    return "\n".join(thought for thought in thoughts if thought), rest


QWEN3 = replace(
    chatml.CHATML,
    name="qwen3",
    recognised_by=(*chatml.CHATML.recognised_by, THINK),
    marks=(THINK, END_THINK, *chatml.CHATML.marks),
    read=read,
    write=write,
)
