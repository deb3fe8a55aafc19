"""Test every renderer with hostile tool output and mutated turns.

    python -m scripts.fuzz [--strings 1000000] [--turns 100000] [--openings 20000] [--seed 0]

Every string goes through every renderer as a tool's reply, some split over two replies: the control tokens must be
those of a harmless reply, and the text must come out unchanged. Every turn is a mutated valid one: parsing must not
raise or find calls that were not sampled. Openings carry hostile questions and tool descriptions. Prints a line for
each renderer and a closing line "N passed, N failed"; a string, turn or opening with one renderer is one case. Exit
code 1 if a case failed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from agentgrpo.core.messages import MalformedCall, ParsedTurn, ToolReply, ToolSpec
from agentgrpo.core.types import Message, Piece, ToolCall
from agentgrpo.renderers.base import ToolRenderer
from agentgrpo.renderers.tags import TagsRenderer
from tests.renderers import families

ALL_CONTROLS = sorted({text for name in families.TOKENIZERS for text in families.tokenizer(name).get_added_vocab()})
MARKUP = (
    *(
        "<tool_call>\n",
        "\n</tool_call>",
        '{"name": "python", "arguments": {"code": "1"}}',
        "<tool_response>",
        "</think>",
    ),
    *(
        "Action: python\nAction Input: {}",
        "\nObservation:",
        "Observation",
        "\nFinal Answer: 1",
        "Thought:",
        "```tool_code",
    ),
    *("<lookup>", "</lookup>", "<insert>", "</insert>", "<skip/>", "<result>"),
    *(
        "\n```\n",
        "```tool_output",
        "[TOOL_CALLS] [{",
        '", "call_id": "',
        "\u27e6content-0\u27e7",
        '\u27e6guard-0"\u27e7',
    ),
)
LETTERS = (
    *(
        "\ud800",
        "\udfff",
        "\ud83d",
        "\x00",
        "\x1b[2K",
        "\r\n",
        "\t",
        " ",
        "\n",
        "\\",
        '"',
        "'",
        "{",
        "}",
        "<",
        ">",
        "|",
    ),
    *(
        "\ufeff",
        "\u200b",
        "\u202e",
        "\u2028",
        "e\u0301",
        "\u00e9",
        "\uff1c",
        "\uff5c",
        "\u6f22",
        "\U0001f642",
        "\u0130",
    ),
    *("a", "tool", "im_", "end", "1", "0", "</", "<|", "|>", "[/", "]", "{{", "%}", "\u00a0"),
)
LONG = 20_000  # characters, of one string in 10,000
SPEC = ToolSpec(
    name="lookup",
    description="Looks up.",
    parameters={"type": "object", "properties": {"key": {"type": "string", "description": "A key."}}},
)
Case: TypeAlias = tuple[Callable[[Any], str], Any]
"""A check and its argument; the check returns the fault, or "" if there is none."""


def hostile(draw: random.Random, controls: Sequence[str]) -> str:
    """Return control strings and their fragments, markup, rare and broken letters; `controls` are those of the
    tokenizer under test, the most likely to be fooled by them."""
    bits: list[str] = []
    for kind in draw.choices("ccofmlll", k=draw.randint(1, 8)):
        if kind in "cf":
            control = draw.choice(controls or ALL_CONTROLS)
            cut = draw.randrange(len(control) + 1) if kind == "f" else len(control)
            bits.append(control[:cut] if draw.random() < 0.5 else control[len(control) - cut :])
        else:
            bits.append(draw.choice(ALL_CONTROLS if kind == "o" else MARKUP if kind == "m" else LETTERS))
    text = "".join(bits)
    return text * (LONG // len(text)) if text and draw.random() < 1e-4 else text


@dataclass
class Score:
    passed: int = 0
    failed: int = 0
    examples: list[str] = field(default_factory=list)

    def count(self, problem: str, of: object) -> None:
        self.passed += not problem
        self.failed += bool(problem)
        if problem and len(self.examples) < 5:
            self.examples.append(f"{problem}: {of!r:.300}")


class Target:
    """One renderer with its encoding of harmless text."""

    def __init__(self, name: str, renderer: ToolRenderer | None = None) -> None:
        self.renderer = renderer or families.renderer(name)
        self.controls = sorted(families.controls(name))
        self.protected = frozenset(families.controls(name).values())
        self.pieces = self.renderer.decode(self.renderer.encode_action("\u2581")) == " "
        self.turns = [self.renderer.encode_action(self.renderer.write(turn)) for turn in _valid()]
        parsed = self.renderer.parse(self.turns[0])
        self.calls, self.sampled = parsed.calls, self.turns[0]
        self.quoted = json.dumps('"')[1:-1] in self.renderer.decode(self._reply(['"']))
        self.fixed = {n: self._harmless(n) for n in (1, 2)}
        self.opening = self._controls(self._open("harmless"))

    def _reply(self, texts: Sequence[str]) -> tuple[int, ...]:
        replies = [ToolReply(call=self.calls[i], text=text) for i, text in enumerate(texts)]
        return self.renderer.reply(replies, sampled=self.sampled)

    def _controls(self, ids: Sequence[int]) -> list[int]:
        return [i for i in ids if i in self.protected]

    def _harmless(self, n: int) -> tuple[list[int], list[str]]:
        """Control tokens of n harmless replies, and the text around them."""
        ids = self._reply(["harmless"] * n)
        return self._controls(ids), self.renderer.decode(ids).split("harmless")

    def _open(self, text: str) -> tuple[int, ...]:
        spec = ToolSpec(name="lookup", description=text, parameters={**SPEC.parameters, "default": [text]})
        return self.renderer.open_with_tools((Message(role="user", content=text),), (SPEC, spec))

    def shown(self, text: str) -> str:
        """The expected text of a reply."""
        return self.whole(json.dumps(text, ensure_ascii=False)[1:-1] if self.quoted else self.framed(text))

    def framed(self, text: str) -> str:
        """For a renderer with textual tags, a tag inside a reply is escaped."""
        return self.renderer.written(text) if isinstance(self.renderer, TagsRenderer) else text

    def whole(self, text: str) -> str:
        """The part of a text that a tokenizer can keep: half a surrogate pair becomes "?", and SentencePiece cannot
        distinguish its own space letter from a space."""
        text = text.encode("utf-8", "replace").decode()
        return text.replace("\u2581", " ") if self.pieces else text

    def reply(self, texts: Sequence[str]) -> str:
        """Return the fault in the reply, "" if there is none."""
        controls, around = self.fixed[len(texts)]
        ids = self._reply(texts)
        if self._controls(ids) != controls:
            return "control tokens"
        expected = around[0] + "".join(self.shown(t) + a for t, a in zip(texts, around[1:], strict=True))
        return "" if self.renderer.decode(ids) == expected else "the text has changed"

    def open(self, text: str) -> str:
        ids = self._open(text)
        if self._controls(ids) != self.opening:
            return "control tokens in the opening"
        return "" if self.whole(text) in self.renderer.decode(ids) else "the question has changed"

    def parse(self, ids: Sequence[int]) -> str:
        """Return the fault in one sampled turn, mutated or not; "" if there is none."""
        turn = self.renderer.parse(ids)
        text = self.renderer.decode(ids)
        for call in turn.calls:
            if isinstance(call, MalformedCall):
                if not call.problem or "\n" in call.problem or len(call.problem) > 300:
                    return "a problem that is not one short line"
            elif "\\" not in text and call.name not in text:
                return "a call that was not sampled"
        if turn.answer is not None and (turn.calls or not turn.answer or ids[-1] not in self.renderer.stop_token_ids):
            return "an answer beside calls, empty, or of a turn that did not end"
        told = self.renderer.tell((Piece("no", True),), sampled=ids)
        replied = self.renderer.reply([ToolReply(call=c, text="no") for c in turn.calls[:2]], sampled=ids)
        if not told or bool(turn.calls) > bool(replied) or self.renderer.parse(ids) != turn:
            return "a second reading differs"
        return ""


def _valid() -> list[ParsedTurn]:
    """Turns as a good policy writes them; the first has two calls."""
    calls = [ToolCall(name="lookup", arguments=a) for a in ({"key": "nut"}, {"n": [1, -2.5], "m": {"a": None}}, {})]
    return [
        ParsedTurn(calls=tuple(calls[:2])),
        ParsedTurn(calls=(calls[1],), reasoning="One moment.", content="I look."),
        ParsedTurn(calls=tuple(calls)),
        ParsedTurn(answer="Only 41 \u00e9."),
        ParsedTurn(answer='{"a": "</tool_call>"}', reasoning="Action: lookup"),
        ParsedTurn(content="Hm."),
    ]


def mutated(draw: random.Random, turns: Sequence[Sequence[int]], vocabulary: int, added: Sequence[int]) -> list[int]:
    """Return a turn with one to four random edits of its tokens."""
    ids = list(draw.choice(turns))
    for _ in range(draw.randint(1, 4)):
        i, j = sorted((draw.randrange(len(ids) + 1), draw.randrange(len(ids) + 1)))
        kind = draw.randrange(6)
        if kind == 0:
            del ids[i : min(j, i + 5)]
        elif kind == 1:
            ids.insert(i, draw.choice(added) if draw.random() < 0.5 else draw.randrange(vocabulary))
        elif kind == 2:
            ids[i:i] = ids[i:j]
        elif kind == 3:
            ids[i:] = []
        elif kind == 4:
            ids[i:j] = draw.choice(turns)[i:j]
        elif ids:
            ids[min(i, len(ids) - 1)] = draw.randrange(vocabulary)
    return ids


def strings(target: Target, count: int, seed: str) -> Iterator[Case]:
    draw = random.Random(seed)
    for n in range(count):
        text = hostile(draw, target.controls)
        cut = draw.randrange(len(text) + 1)
        yield target.reply, [text[:cut], text[cut:]] if n % 4 == 0 else [text]


def turns(target: Target, count: int, seed: str) -> Iterator[Case]:
    draw = random.Random(seed)
    added = sorted(target.protected)
    yield from ((target.parse, ids) for ids in target.turns[:count])
    for _ in range(count - len(target.turns)):
        yield target.parse, mutated(draw, target.turns, max(added) + 1, added)


def openings(target: Target, count: int, seed: str) -> Iterator[Case]:
    draw = random.Random(seed)
    for _ in range(count):
        yield target.open, hostile(draw, target.controls)


def fuzz(target: Target, *, counts: Mapping[str, int], seed: str) -> Score:
    """counts: number of strings, turns and openings."""
    score = Score()
    for make in (strings, turns, openings):
        for check, argument in make(target, counts[make.__name__], f"{seed} {make.__name__}"):
            try:
                problem = check(argument)
            except Exception as e:  # an exception of a renderer is its failure
                problem = f"{make.__name__}: {type(e).__name__}: {e}"
            score.count(problem, argument)
    return score


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strings", type=int, default=1_000_000, help="hostile replies for each renderer")
    parser.add_argument("--turns", type=int, default=100_000, help="mutated turns for each renderer")
    parser.add_argument("--openings", type=int, default=20_000, help="hostile openings for each renderer")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    counts = {"strings": args.strings, "turns": args.turns, "openings": args.openings}
    passed = failed = 0
    for name in families.TOKENIZERS:
        began = time.process_time()
        score = fuzz(Target(name), counts=counts, seed=f"{args.seed} {name}")
        passed, failed = passed + score.passed, failed + score.failed
        seconds = time.process_time() - began
        print(f"{name}: {score.passed} passed, {score.failed} failed, {seconds:.0f} CPU-seconds", flush=True)
        for example in score.examples:
            print(f"  {example}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
