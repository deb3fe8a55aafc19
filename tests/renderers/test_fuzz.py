"""Twenty thousand hostile strings, half as many mutated turns over all renderers; `make fuzz` does a million each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from agentgrpo.core.messages import ParsedTurn, ToolReply, ToolSpec
from agentgrpo.core.types import Message, Piece, ToolCall
from agentgrpo.renderers.tokens import TrustedEncoder
from scripts import fuzz
from tests.renderers.families import TOKENIZERS, renderer, tokenizer
from tests.thorough import siblings

COUNTS = {"strings": 1_000, "turns": 500, "openings": 50}
"""make fuzz makes a million."""


@pytest.mark.parametrize("name", siblings(TOKENIZERS, quick=5))
def test_no_renderer_falls_for_anything(name: str) -> None:
    score = fuzz.fuzz(fuzz.Target(name), counts=COUNTS, seed=f"ci {name}")
    assert (score.examples, score.failed, score.passed) == ([], 0, sum(COUNTS.values()))


class Broken:
    """A renderer with one of its methods replaced."""

    def __init__(self, name: str, **broken: object) -> None:
        self._renderer = renderer(name)
        self.__dict__.update(broken)

    def __getattr__(self, name: str) -> object:
        return getattr(self._renderer, name)


def failures(name: str, kind: str, **broken: object) -> fuzz.Score:
    counts = {"strings": 0, "turns": 0, "openings": 0, kind: 500}
    return fuzz.fuzz(fuzz.Target(name, Broken(name, **broken)), counts=counts, seed="broken")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_trusting_tool_output_is_found(name: str) -> None:
    trusted = TrustedEncoder(tokenizer(name))

    def reply(replies: Sequence[ToolReply], *, sampled: Sequence[int]) -> tuple[int, ...]:
        return trusted.encode("".join(reply.text for reply in replies))

    score = failures(name, "strings", reply=reply)
    assert score.failed > 50
    assert score.examples[0].startswith("control tokens: ")


def test_stripping_text_is_found() -> None:
    speaks = renderer("chatml")

    def reply(replies: Sequence[ToolReply], *, sampled: Sequence[int]) -> tuple[int, ...]:
        return speaks.observe([Piece(reply.text.replace("<|", ""), False) for reply in replies])

    assert any("the text has changed" in example for example in failures("chatml", "strings", reply=reply).examples)


def test_a_parser_that_raises_or_invents_is_found() -> None:
    speaks = renderer("react")

    def raising(ids: Sequence[int]) -> ParsedTurn:
        if isinstance(ids, list):  # as mutated turns are
            raise ZeroDivisionError
        return speaks.parse(ids)

    def inventing(ids: Sequence[int]) -> ParsedTurn:
        return ParsedTurn(calls=(ToolCall(name="invented", arguments={}),) * 2)

    def answering(ids: Sequence[int]) -> ParsedTurn:
        return replace(speaks.parse(ids), answer="41")

    assert failures("react", "turns", parse=raising).examples[0].startswith("turns: ZeroDivisionError: ")
    assert failures("react", "turns", parse=answering).examples[0].startswith("an answer beside calls, ")
    assert failures("react", "turns", parse=inventing).examples[0].startswith("a call that was not sampled: ")


def test_an_opening_that_trusts_is_found() -> None:
    trusted = TrustedEncoder(tokenizer("qwen3"))

    def open_with_tools(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        return trusted.encode(messages[0].content)

    score = failures("qwen3", "openings", open_with_tools=open_with_tools)
    assert score.failed > 50
    assert score.examples[0].startswith("control tokens in the opening: ")


def test_the_closing_line_and_the_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ["--strings", "20", "--turns", "20", "--openings", "2"]
    assert fuzz.main(few) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(TOKENIZERS) + 1
    assert lines[-1] == f"{42 * len(TOKENIZERS)} passed, 0 failed"
    monkeypatch.setattr(fuzz.Target, "open", lambda self, text: "broken")
    assert fuzz.main(few) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"{40 * len(TOKENIZERS)} passed, {2 * len(TOKENIZERS)} failed"
