"""What each family makes of turns that a policy can sample, good and bad. Turns end with the family's own token."""

from __future__ import annotations

import pytest

from agentgrpo.core.messages import AnyCall, MalformedCall, ParsedTurn
from agentgrpo.core.types import ToolCall
from tests.renderers.families import renderer

NUT = ToolCall(name="lookup", arguments={"key": "nut"})
OIL = ToolCall(name="lookup", arguments={"key": "oil"})
NUT_ARGUMENTS = '{"name": "lookup", "arguments": {"key": "nut"}}'
OIL_ARGUMENTS = NUT_ARGUMENTS.replace("nut", "oil")
NUT_PARAMETERS = '{"name": "lookup", "parameters": {"key": "nut"}}'
UNQUOTED = "this is not JSON: Unterminated string starting at character 41"


def calls(*made: AnyCall, content: str = "", reasoning: str = "") -> ParsedTurn:
    return ParsedTurn(calls=made, content=content, reasoning=reasoning)


def bad(text: str, problem: str, name: str = "lookup") -> MalformedCall:
    return MalformedCall(text=text, problem=problem, name=name)


def read(name: str, text: str) -> ParsedTurn:
    speaks = renderer(name)
    return speaks.parse(speaks.encode_action(text))


QWEN = [
    (f"<tool_call>\n{NUT_ARGUMENTS}\n</tool_call><|im_end|>", calls(NUT)),
    (
        f"I ask. <tool_call>{NUT_ARGUMENTS}</tool_call> and\n<tool_call>{OIL_ARGUMENTS}</tool_call>",
        calls(NUT, OIL, content="I ask.  and"),
    ),
    (
        f"<tool_call>\n{NUT_ARGUMENTS}\n<|im_end|>",
        calls(bad(f"<tool_call>\n{NUT_ARGUMENTS}\n", "the call does not end with </tool_call>")),
    ),
    (
        f"{NUT_ARGUMENTS}\n</tool_call><|im_end|>",
        calls(bad(f"{NUT_ARGUMENTS}\n</tool_call>", "</tool_call> without <tool_call> before it")),
    ),
    (
        f"<tool_call><tool_call>{NUT_ARGUMENTS}</tool_call></tool_call>",
        calls(
            bad("<tool_call>", "a call within a call: end the first with </tool_call>", ""),
            NUT,
            bad("</tool_call>", "</tool_call> without <tool_call> before it", ""),
        ),
    ),
    ("<tool_call></tool_call>", calls(bad("<tool_call></tool_call>", "there is no JSON", ""))),
    (
        '<tool_call>{"name": "lookup", "arguments": {"key": "nut}}</tool_call>',
        calls(bad('<tool_call>{"name": "lookup", "arguments": {"key": "nut}}</tool_call>', UNQUOTED)),
    ),
    (
        f"<tool_call>[{NUT_ARGUMENTS}]</tool_call>",
        calls(bad(f"<tool_call>[{NUT_ARGUMENTS}]</tool_call>", "a call is a JSON object, not an array")),
    ),
    (
        '<tool_call>{"arguments": {}}</tool_call>',
        calls(bad('<tool_call>{"arguments": {}}</tool_call>', 'the call has no "name"', "")),
    ),
    ("It is 41.<|im_end|>", ParsedTurn(answer="It is 41.")),
    ("It is 41.<|endoftext|>", ParsedTurn(content="It is 41.<|endoftext|>")),
    ("It is 41.", ParsedTurn(content="It is 41.")),
    (" \n<|im_end|>", ParsedTurn()),
]


@pytest.mark.parametrize("name", ["chatml", "chatml, tags as text", "qwen3"])
@pytest.mark.parametrize("text, turn", QWEN)
def test_chatml(name: str, text: str, turn: ParsedTurn) -> None:
    assert read(name, text) == turn


@pytest.mark.parametrize(
    "text, turn",
    [
        (f"<think>\nOil?\n</think>\n\n<tool_call>{NUT_ARGUMENTS}</tool_call>", calls(NUT, reasoning="Oil?")),
        (
            f"<think>If <tool_call>{OIL_ARGUMENTS}</tool_call></think>41<|im_end|>",
            ParsedTurn(answer="41", reasoning=f"If <tool_call>{OIL_ARGUMENTS}</tool_call>"),
        ),
        (
            f"<think>One</think>So<think>two</think><tool_call>{NUT_ARGUMENTS}</tool_call>",
            calls(NUT, content="So", reasoning="One\ntwo"),
        ),
        (
            f"<think>Oil? <tool_call>{OIL_ARGUMENTS}</tool_call><|im_end|>",
            ParsedTurn(reasoning=f"Oil? <tool_call>{OIL_ARGUMENTS}</tool_call>"),
        ),
        (
            f"<tool_call>{OIL_ARGUMENTS}</tool_call></think>41<|im_end|>",
            ParsedTurn(answer="41", reasoning=f"<tool_call>{OIL_ARGUMENTS}</tool_call>"),
        ),
    ],
)
def test_reasoning_of_qwen3(text: str, turn: ParsedTurn) -> None:
    assert read("qwen3", text) == turn


def test_where_the_template_opens_the_block_a_turn_begins_inside_it() -> None:
    assert read("qwen3, opened", f"Oil?\n</think>\n\n<tool_call>{NUT_ARGUMENTS}</tool_call>") == calls(
        NUT, reasoning="Oil?"
    )
    assert read("qwen3, opened", f"<tool_call>{NUT_ARGUMENTS}</tool_call><|im_end|>") == ParsedTurn(
        reasoning=f"<tool_call>{NUT_ARGUMENTS}</tool_call>"
    )


def test_a_tag_that_is_spelled_letter_by_letter_is_text_where_the_tag_is_a_token() -> None:
    text = f"<tool_call>{NUT_ARGUMENTS}</tool_call>"
    speaks = renderer("chatml")
    letters = tuple(i for letter in text for i in speaks.encode_action(letter))
    assert speaks.decode(letters) == text
    assert speaks.parse((*letters, *speaks.stop_token_ids)) == ParsedTurn(answer=text)  # quoting a page calls nothing
    assert renderer("chatml, tags as text").parse(letters) == calls(NUT)


@pytest.mark.parametrize(
    "text, turn",
    [
        (f"{NUT_PARAMETERS}<|eot_id|>", calls(NUT)),
        (f"<|python_tag|>{NUT_PARAMETERS}<|eom_id|>", calls(NUT)),
        (f"I ask.<|python_tag|>{NUT_PARAMETERS}; {OIL_ARGUMENTS}", calls(NUT, OIL, content="I ask.")),
        (
            "<|python_tag|>print(1)<|eom_id|>",
            calls(bad("print(1)", "this is not JSON: Expecting value at character 1", "")),
        ),
        ("<|python_tag|><|eom_id|>", calls(bad("<|python_tag|>", "<|python_tag|> is not followed by a call", ""))),
        (
            '{"name": "lookup", "parameters": {"key": "nut}}<|eot_id|>',
            calls(bad('{"name": "lookup", "parameters": {"key": "nut}}', UNQUOTED.replace("41", "42"))),
        ),
        ('{"parameters": {}}<|eot_id|>', calls(bad('{"parameters": {}}', 'the call has no "name"', ""))),
        (
            f"{NUT_PARAMETERS} is it<|eot_id|>",
            calls(NUT, bad("is it", "this is not JSON: Expecting value at character 1", "")),
        ),
        (f"So {NUT_PARAMETERS}<|eot_id|>", ParsedTurn(answer=f"So {NUT_PARAMETERS}")),
        ('{"price": 41}<|eot_id|>', ParsedTurn(answer='{"price": 41}')),
        ("41<|eom_id|>", ParsedTurn(answer="41")),
    ],
)
def test_llama3(text: str, turn: ParsedTurn) -> None:
    assert read("llama3", text) == turn


ID = "a1B2c3D4e"
WITH_ID = NUT_ARGUMENTS[:-1] + f', "id": "{ID}"}}'


def test_mistral_keeps_fit_ids_and_makes_the_others() -> None:
    turn = read("mistral", f"I ask. [TOOL_CALLS] [{WITH_ID}, {WITH_ID}, {OIL_ARGUMENTS}]</s>")
    first, second, third = (call.id for call in turn.calls)
    assert turn.content == "I ask."
    assert [(c.name, c.arguments) for c in turn.calls if isinstance(c, ToolCall)] == [
        ("lookup", {"key": k}) for k in ("nut", "nut", "oil")
    ]
    assert first == ID
    assert len({first, second, third}) == 3
    assert all(len(i) == 9 and i.isalnum() for i in (second, third))
    for unfit in ("short", "a1B2c3D4e5", 'a1B2", "b', "\u00e91B2c3D4e", 9):
        (call,) = read("mistral", f'[TOOL_CALLS][{NUT_ARGUMENTS[:-1]}, "id": {unfit!r}}}]'.replace("'", '"')).calls
        assert call.id != unfit
        assert len(call.id) == 9


@pytest.mark.parametrize(
    "text, call",
    [
        (
            f"[TOOL_CALLS] {NUT_ARGUMENTS}",
            bad(f"[TOOL_CALLS] {NUT_ARGUMENTS}", "[TOOL_CALLS] needs a JSON array of calls, not an object"),
        ),
        ("[TOOL_CALLS] []", bad("[TOOL_CALLS] []", "[TOOL_CALLS] needs a JSON array of calls, not an empty one", "")),
        (
            f"[TOOL_CALLS] [{NUT_ARGUMENTS}",
            bad(f"[TOOL_CALLS] [{NUT_ARGUMENTS}", "this is not JSON: Expecting ',' delimiter at character 49"),
        ),
        (f"[TOOL_CALLS] [{NUT_ARGUMENTS}] so", bad(f"[TOOL_CALLS] [{NUT_ARGUMENTS}] so", "text after the calls: 'so'")),
        ("[TOOL_CALLS] [3]", bad("[TOOL_CALLS] [3]", "a call is a JSON object, not a number", "")),
        ("[TOOL_CALLS]", bad("[TOOL_CALLS]", "there is no JSON", "")),
    ],
)
def test_mistral_malformed(text: str, call: MalformedCall) -> None:
    (got,) = read("mistral", f"{text}</s>").calls
    assert isinstance(got, MalformedCall)
    assert (got.text, got.problem, got.name, len(got.id)) == (call.text, call.problem, call.name, 9)


def test_mistral_answers_and_two_arrays() -> None:
    assert read("mistral", " It is 41.</s>") == ParsedTurn(answer="It is 41.")
    turn = read("mistral", f"[TOOL_CALLS] [{WITH_ID}][TOOL_CALLS] [{WITH_ID}]</s>")
    assert [call.id == ID for call in turn.calls] == [True, False]


FENCED = f"```tool_code\n{NUT_ARGUMENTS}\n```"


@pytest.mark.parametrize(
    "text, turn",
    [
        (f"{FENCED}<end_of_turn>", calls(NUT)),
        (f"I ask.\n{FENCED}\n```function_call\n{OIL_ARGUMENTS}\n```<end_of_turn>", calls(NUT, OIL, content="I ask.")),
        (f"```tool_code\n{NUT_ARGUMENTS}\n{OIL_ARGUMENTS}\n```", calls(NUT, OIL)),
        (f"{NUT_PARAMETERS}<end_of_turn>", calls(NUT)),
        (f"```json\n{NUT_PARAMETERS}\n```<end_of_turn>", calls(NUT)),
        ('```json\n{"price": 41}\n```<end_of_turn>', ParsedTurn(answer='```json\n{"price": 41}\n```')),
        (f"```\n{NUT_ARGUMENTS}\n```<end_of_turn>", ParsedTurn(answer=f"```\n{NUT_ARGUMENTS}\n```")),
        (f"```python\n```tool_code\n{NUT_ARGUMENTS}\n```", calls(NUT, content="```python")),
        (FENCED[:-4], calls(bad(FENCED[:-4], "the code block of the call does not end with a line ```"))),
        (
            f"```tool_code\n{FENCED}",
            calls(bad("```tool_code\n", "the code block of the call does not end with a line ```", ""), NUT),
        ),
        ("```tool_code\n```", calls(bad("```tool_code\n```", "the code block holds no call", ""))),
        (
            "```tool_code\nlookup(key='nut')\n```",
            calls(bad("```tool_code\nlookup(key='nut')\n```", "this is not JSON: Expecting value at character 1", "")),
        ),
        (f"``` {FENCED}<end_of_turn>", ParsedTurn(answer=f"``` {FENCED}")),
        ("41<eos>", ParsedTurn(answer="41")),
    ],
)
def test_gemma(text: str, turn: ParsedTurn) -> None:
    assert read("gemma", text) == turn
