"""ReAct in plain text, for every tokenizer (Yao et al. 2022, "ReAct: Synergizing Reasoning and Acting").

    Thought: optional, any number of lines
    Action: lookup
    Action Input: {"table": "prices", "key": "nut"}
    Observation: 41
    Final Answer: 1276<eos>

The policy samples "\\nObservation:" itself, as the stop string of a call, and eos after the answer; both are trained
on. The environment appends " 41\\n". If there is a chat template, the whole episode is one of its turns. Several
actions before one observation are parallel calls; their results follow one another, each after an "Observation:".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import AnyCall, MalformedCall, ParsedTurn, ToolReply, ToolSpec
from agentgrpo.core.types import Message, Piece, ToolCall
from agentgrpo.renderers import describe
from agentgrpo.renderers.calls import UnreadableCall, malformed, read_object, shown
from agentgrpo.renderers.plain import PlainRenderer, takes_system
from agentgrpo.renderers.tokens import FastTokenizer, framed

STOP = "\nObservation:"
# tokens whose text can hold the stop string or a part of it, a character's remaining bytes included
_TAIL = len(STOP) + 4
_ACTS = re.compile(r"^(?:Action|Action Input|Final Answer):", re.MULTILINE)
_ACTION = re.compile(r"^Action:", re.MULTILINE)
_CALL = re.compile(r"Action:([^\n]*)\n[ \t\n]*Action Input:")
_THOUGHT = re.compile(r"^Thought:", re.MULTILINE)
_FINAL = "Final Answer:"
_ANSWERED = re.compile(
    r"^Action: [^\n]*\nAction Input: [^\n]*\nObservation:(.*?)(?=^Action: |\Z)", re.DOTALL | re.MULTILINE
)


class ReactRenderer:
    """Implements renderers.base.ToolRenderer for any fast tokenizer."""

    stop_strings: tuple[str, ...] = (STOP,)
    in_turns = False

    def __init__(self, *, tokenizer: FastTokenizer, chat_template: str = "auto", describe_tools: bool = False) -> None:
        """chat_template: as in PlainRenderer. describe_tools: the opening lists the tools and this format; a policy
        that was warm-started on the format needs neither. Raises ConfigError for a tokenizer without eos token."""
        self._plain = PlainRenderer(tokenizer=tokenizer, chat_template=chat_template)
        self.stop_token_ids, self.longest_token = self._plain.stop_token_ids, self._plain.longest_token
        if not self.stop_token_ids:
            raise ConfigError("renderer react: this tokenizer has no eos token to end an answer with; give it one")
        self._eos = self._plain.decode(self.stop_token_ids[:1])
        self._describes = describe_tools
        self._system_role = describe_tools and takes_system(self._plain)

    def open(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self._plain.open(messages)

    def open_with_tools(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        if self._describes and tools:
            text = describe.describe(tools, describe.REACT)
            messages = describe.put_first(text, messages, system_role=self._system_role)
        return self._plain.open(messages)

    def observe(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        return self._plain.observe(pieces)

    def encode_action(self, text: str) -> tuple[int, ...]:
        return self._plain.encode_action(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._plain.decode(token_ids)

    def parse(self, token_ids: Sequence[int]) -> ParsedTurn:
        """Calls take precedence over answers. Text after an action that is not another action makes it malformed. An
        answer counts only if eos ended it; an answer that was cut short is content."""
        ended = bool(token_ids) and token_ids[-1] in self.stop_token_ids
        text = self.decode(token_ids[:-1] if ended else token_ids)
        body = text.partition(STOP)[0]
        if body == text and not ended:
            body = text.removesuffix(STOP[: _begun(text)])
        first = _ACTS.search(body)
        preamble, acts = (body[: first.start()], body[first.start() :]) if first else (body, "")
        thought = _THOUGHT.search(preamble)
        content, reasoning = (preamble[: thought.start()], preamble[thought.end() :]) if thought else (preamble, "")
        if not acts.startswith(_FINAL):
            return ParsedTurn(calls=tuple(_calls(acts)), reasoning=reasoning.strip(), content=content.strip())
        answer = acts.removeprefix(_FINAL).strip()
        complete = bool(answer) and ended and body == text
        return ParsedTurn(
            answer=answer if complete else None,
            reasoning=reasoning.strip(),
            content=(content if complete else content + acts).strip(),
        )

    def answered(self, context: str) -> list[str]:
        """Return the replies to calls that were made one by one."""
        return [text.strip() for text in _ANSWERED.findall(context)]

    def reply(self, replies: Sequence[ToolReply], *, sampled: Sequence[int]) -> tuple[int, ...]:
        pieces = [Piece(self._rest_of_stop(sampled), True)]
        for i, reply in enumerate(replies):
            if i:
                pieces.append(Piece(STOP, True))
            # the space and the line's end are encoded with the text, since they may share its tokens
            pieces.append(Piece(f" {reply.text}" + "\n" * (i + 1 == len(replies)), False))
        return self.observe(pieces)

    def written(self, text: str) -> str:
        return text

    def tell(self, pieces: Sequence[Piece], *, sampled: Sequence[int]) -> tuple[int, ...]:
        return self.observe((Piece(self._rest_of_stop(sampled), True), *framed(" ", pieces, "\n")))

    def write(self, turn: ParsedTurn) -> str:
        parts = [f"{turn.content}\n"] if turn.content else []
        parts += [f"Thought: {turn.reasoning}\n"] if turn.reasoning else []
        if turn.calls:
            return "".join((*parts, "\n".join(map(_written, turn.calls)), STOP))
        return "".join((*parts, f"{_FINAL} {turn.answer}" if turn.answer is not None else "", self._eos))

    def _rest_of_stop(self, sampled: Sequence[int]) -> str:
        """Return the part of the stop string that the turn lacks: nothing, the part that was cut off, or all of it."""
        if not sampled or sampled[-1] in self.stop_token_ids:
            return STOP
        tail = self.decode(sampled[-_TAIL:])
        return "" if STOP in tail else STOP[_begun(tail) :]


def _begun(text: str) -> int:
    """Return how many characters of the stop string `text` ends with."""
    return next(n for n in range(len(STOP) - 1, -1, -1) if text.endswith(STOP[:n]))


def _calls(acts: str) -> Iterator[AnyCall]:
    """Yield every call of `acts`, which is "" or begins with an action."""
    starts = [m.start() for m in _ACTION.finditer(acts)]
    if acts and (not starts or starts[0]):
        starts.insert(0, 0)
    for start, end in pairwise((*starts, len(acts))):
        yield _call(acts[start:end].rstrip("\n") if end < len(acts) else acts[start:end])


def _call(text: str) -> AnyCall:
    found = _CALL.match(text)
    if not found:
        named = re.match(r"Action:([^\n]*)", text)
        name = named[1].strip() if named else ""
        return malformed(text, _incomplete(text), name=name[:64])
    name = found[1].strip()
    if not name:
        return malformed(text, "Action: is not followed by the name of a tool")
    try:
        arguments, end = read_object(text, found.end())
    except UnreadableCall as e:
        return malformed(text, f"Action Input: {e}", name=name)
    if rest := text[end:].strip():
        return malformed(text, f"text after the arguments: {shown(rest)}", name=name)
    return ToolCall(name=name, arguments=arguments)


def _incomplete(text: str) -> str:
    if text.startswith("Action Input:"):
        return "Action Input: without a line Action: NAME before it"
    return "the line Action: NAME must be followed by a line Action Input: {JSON arguments}"


def _written(call: AnyCall) -> str:
    if isinstance(call, MalformedCall):
        return call.text
    return f"Action: {call.name}\nAction Input: {json.dumps(dict(call.arguments), ensure_ascii=False)}"
