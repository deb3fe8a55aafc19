from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import AnyCall, MalformedCall, ParsedTurn, ToolReply, ToolSpec
from agentgrpo.core.types import Message, Piece, ToolCall
from agentgrpo.renderers.react import ReactRenderer
from tests.renderers.families import CHATML, GEMMA, QWEN25_ADDED, SPECIAL, build, renderer, tokenizer

NUT = ToolCall(name="lookup", arguments={"table": "prices", "key": "nut"})
OIL = ToolCall(name="python", arguments={"code": "print(1)"})
NUT_TEXT = 'Action: lookup\nAction Input: {"table": "prices", "key": "nut"}'
OIL_TEXT = 'Action: python\nAction Input: {"code": "print(1)"}'
SPEC = ToolSpec(name="lookup", description="Looks up.", parameters={"type": "object"})


def calls(*made: AnyCall, content: str = "", reasoning: str = "") -> ParsedTurn:
    return ParsedTurn(calls=made, content=content, reasoning=reasoning)


def bad(text: str, problem: str, name: str = "lookup") -> MalformedCall:
    return MalformedCall(text=text, problem=problem, name=name)


@pytest.mark.parametrize(
    "text, turn",
    [
        (f"{NUT_TEXT}\nObservation:", calls(NUT)),
        (f"Thought: I look.\nTwice.\n{NUT_TEXT}\nObservation:", calls(NUT, reasoning="I look.\nTwice.")),
        (f"Well.\nThought: I look.\n{NUT_TEXT}\nObservation:", calls(NUT, content="Well.", reasoning="I look.")),
        (f"{NUT_TEXT}\n{OIL_TEXT}\nObservation:", calls(NUT, OIL)),
        (NUT_TEXT.replace("Input: ", "Input:\n ").replace(", ", ",\n "), calls(NUT)),
        (f"{NUT_TEXT}\nObserv", calls(NUT)),
        (f"{NUT_TEXT}\n<eos>", calls(NUT)),
        (f"Action: lookup\nAction Input: {{}}\n{OIL_TEXT}", calls(ToolCall(name="lookup", arguments={}), OIL)),
        ("Final Answer: 41<eos>", ParsedTurn(answer="41")),
        ("Thought: Easy.\nFinal Answer: 41\nAction: no<eos>", ParsedTurn(answer="41\nAction: no", reasoning="Easy.")),
        ("Final Answer:<eos>", ParsedTurn(content="Final Answer:")),
        ("Final Answer: 41", ParsedTurn(content="Final Answer: 41")),
        ("Final Answer: 41\nObservation:", ParsedTurn(content="Final Answer: 41")),
        ("Final Answer: 41\nObservation:<eos>", ParsedTurn(content="Final Answer: 41")),
        ("So Action: lookup\nObservation:", ParsedTurn(content="So Action: lookup")),
        ("Thought: Hm.<eos>", ParsedTurn(reasoning="Hm.")),
    ],
)
def test_turns(text: str, turn: ParsedTurn) -> None:
    speaks = renderer("react")
    assert speaks.parse(speaks.encode_action(text)) == turn


@pytest.mark.parametrize(
    "text, problem, name",
    [
        (NUT_TEXT[:-1], "Action Input: this is not JSON: Expecting ',' delimiter at character 33", "lookup"),
        (
            NUT_TEXT[:-2] + "}",
            "Action Input: this is not JSON: Unterminated string starting at character 28",
            "lookup",
        ),
        (f"{NUT_TEXT} so", "text after the arguments: 'so'", "lookup"),
        (f"{NUT_TEXT}\nFinal Answer: 41", "text after the arguments: 'Final Answer: 41'", "lookup"),
        (f"{NUT_TEXT}}}", "text after the arguments: '}'", "lookup"),
        ('Action: lookup\nAction Input: ["nut"]', "Action Input: a JSON object is needed, not an array", "lookup"),
        ("Action: lookup\nAction Input:", "Action Input: there is no JSON", "lookup"),
        ("Action: lookup", "the line Action: NAME must be followed by a line Action Input: {JSON arguments}", "lookup"),
        (
            "Action: look\nup\nAction Input: {}",
            "the line Action: NAME must be followed by a line Action Input: {JSON arguments}",
            "look",
        ),
        ("Action:\nAction Input: {}", "Action: is not followed by the name of a tool", ""),
        ("Action Input: {}", "Action Input: without a line Action: NAME before it", ""),
    ],
)
def test_malformed_calls(text: str, problem: str, name: str) -> None:
    speaks = renderer("react")
    assert speaks.parse(speaks.encode_action(f"{text}\nObservation:")) == calls(bad(text, problem, name))


def test_a_malformed_call_beside_a_good_one() -> None:
    speaks = renderer("react")
    turn = calls(bad(NUT_TEXT[:-1], "Action Input: this is not JSON: Expecting ',' delimiter at character 33"), OIL)
    text = f"{NUT_TEXT[:-1]}\n{OIL_TEXT}\nObservation:"
    assert speaks.parse(speaks.encode_action(text)) == turn
    assert speaks.write(turn) == text


def test_the_format_of_demonstrations_token_by_token() -> None:
    speaks = renderer("react")
    text = speaks.write(ParsedTurn(calls=(ToolCall(name="lookup", arguments={"key": " nut"}),)))
    assert text == 'Action: lookup\nAction Input: {"key": " nut"}\nObservation:'
    ids = speaks.encode_action(text)
    pieces = [speaks.decode([i]) for i in ids]
    assert [p for p in pieces if len(p) > 3] == [
        "Action: ",
        "okup",
        "\nAction Input: ",
        '{"key": "',
        "\nObservation:",
    ]
    assert speaks.encode_action(speaks.write(ParsedTurn(answer="1276")))[-1:] == speaks.stop_token_ids


def test_replies_continue_the_line_that_the_policy_began() -> None:
    speaks = renderer("react")
    sampled = speaks.encode_action(f"{NUT_TEXT}\n{OIL_TEXT}\nObservation:")
    one, two = ToolReply(call=NUT, text="41"), ToolReply(call=OIL, text="error: no\n")
    assert speaks.decode(speaks.reply([one], sampled=sampled)) == " 41\n"
    assert speaks.decode(speaks.reply([one, two], sampled=sampled)) == " 41\nObservation: error: no\n\n"
    added = set(tokenizer("react").get_added_vocab().values())
    assert [speaks.decode([i]) for i in speaks.reply([one, two], sampled=sampled) if i in added] == ["\nObservation:"]
    assert (
        speaks.decode(speaks.tell((Piece("Act!", True),), sampled=speaks.encode_action("Hm.<eos>")))
        == "\nObservation: Act!\n"
    )


def test_the_digits_of_a_reply_are_the_digits_of_a_question() -> None:
    speaks = renderer("react")
    assert [
        speaks.decode([i])
        for i in speaks.reply([ToolReply(call=NUT, text="41")], sampled=speaks.encode_action("\nObservation:"))
    ] == [" 4", "1", "\n"]


def chat(template: str | None) -> PreTrainedTokenizerFast:
    special = tuple(dict.fromkeys((*SPECIAL["chatml"], *SPECIAL["gemma"])))
    return build(special, eos="<|im_end|>", bos="<bos>", added=QWEN25_ADDED, template=template)


ASK = Message(role="user", content="How much?")
TOLD = 'You can call these tools:\nlookup: Looks up. Arguments: {"type": "object"}\nTo call a tool, write'


@pytest.mark.parametrize(
    "template, messages, begins",
    [
        (None, [ASK], f"<bos>{TOLD}"),
        (None, [Message(role="system", content="Be brief."), ASK], f"<bos>Be brief.\n\n{TOLD}"),
        (CHATML, [ASK], f"<|im_start|>system\n{TOLD}"),
        (GEMMA, [ASK], f"<bos><start_of_turn>user\n{TOLD}"),  # which knows no system role
    ],
)
def test_tools_are_described_if_asked(template: str | None, messages: list[Message], begins: str) -> None:
    speaks = ReactRenderer(tokenizer=chat(template), describe_tools=True)
    text = speaks.decode(speaks.open_with_tools(messages, [SPEC]))
    assert text.startswith(begins)
    assert text.index("Final Answer: ANSWER") < text.index("How much?")
    assert speaks.open_with_tools(messages, []) == speaks.open(messages)
    assert ReactRenderer(tokenizer=chat(template)).open_with_tools(messages, [SPEC]) == speaks.open(messages)


def test_a_tokenizer_without_an_end_is_refused() -> None:
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer("react").backend_tokenizer)
    with pytest.raises(ConfigError, match="renderer react: this tokenizer has no eos token"):
        ReactRenderer(tokenizer=bare)
