"""What is read of a file in chat format, and what is refused by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import DataError
from agentgrpo.core.messages import ParsedTurn, ToolSpec
from agentgrpo.core.types import Message, ToolCall
from agentgrpo.rollout.demonstrations.chat_rows import CallReply, Chat, Exchange, read_chats

USER = {"role": "user", "content": "2 + 2?"}
FOUR = {"role": "assistant", "content": "4"}
CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}
ASKS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TELLS = {"role": "tool", "tool_call_id": "a", "content": "4"}
ADD = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}


def read(folder: Path, *rows: Any) -> tuple[Chat, ...]:
    path = folder / "chats.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return read_chats(path)


def test_the_formats(tmp_path: Path) -> None:
    plain, with_tools, halves, texts = read(
        tmp_path,
        {"messages": [{"role": "system", "content": "Be brief."}, USER, FOUR]},
        {"messages": [USER, ASKS, TELLS, FOUR], "tools": [{"type": "function", "function": ADD}]},
        {
            "prompt": [USER, FOUR, {"role": "user", "content": [{"type": "text", "text": "Sure?"}]}],
            "completion": [FOUR],
        },
        {"prompt": "2 + 2?", "completion": "4", "source": "a book"},
    )
    user, four = Message(role="user", content="2 + 2?"), Exchange(turn=ParsedTurn(content="4"))
    assert (plain.opening, plain.tools) == ((Message(role="system", content="Be brief."), user), None)
    assert plain.exchanges == texts.exchanges == halves.exchanges == (four,)
    assert texts.opening == (user,)
    assert [m.content for m in halves.opening] == ["2 + 2?", "4", "Sure?"]
    assert with_tools.tools == (ToolSpec(**ADD),)  # type: ignore[arg-type]
    assert with_tools.exchanges == (
        Exchange(
            turn=ParsedTurn(calls=(ToolCall(name="add", arguments={"a": 2, "b": 2}, id="a"),)),
            then=(CallReply(0, "4"),),
        ),
        Exchange(turn=ParsedTurn(answer="4")),
    )
    assert with_tools.id == "chats.jsonl:2"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{", "not valid JSON"),
        ([], "is not an object"),
        ({"text": "2 + 2 = 4"}, "its keys are text; needed is"),
        ({"messages": "hello"}, "must begin and end with an assistant message"),
        ({"messages": [USER]}, "must begin and end with an assistant message"),
        ({"messages": [USER, FOUR, USER]}, "must begin and end with an assistant message"),
        ({"messages": [FOUR]}, "there is no message before the assistant's first turn"),
        ({"messages": ["hello"]}, "'messages' must be a list of messages"),
        ({"messages": [{"role": "human", "content": "x"}, FOUR]}, 'role "human"; system, user, assistant, tool are'),
        ({"messages": [USER, FOUR, FOUR]}, "two assistant messages follow each other"),
        ({"messages": [USER, {"role": "assistant", "content": " "}]}, "an assistant message says nothing"),
        ({"messages": [USER, {"role": "assistant", "content": 4}]}, "the content of a message of role assistant must"),
        ({"messages": [USER, FOUR, {"role": "system", "content": "x"}, USER, FOUR]}, "a system message after"),
        ({"messages": [USER, FOUR, TELLS, FOUR]}, "a tool message answers no tool call"),
        ({"messages": [USER, ASKS, TELLS, TELLS | {"tool_call_id": "b"}, FOUR]}, "a tool message answers no tool call"),
        (
            {"messages": [USER, ASKS | {"tool_calls": [{"function": {"name": "add", "arguments": "{"}}]}]},
            "are not JSON",
        ),
        ({"messages": [USER, ASKS | {"tool_calls": [{"arguments": {}}]}]}, "a tool call must be"),
        ({"messages": [USER, FOUR], "tools": [{"description": "x"}]}, "a tool must be"),
        ({"messages": [USER, FOUR], "tools": {"add": ADD}}, "'tools' must be a list of objects"),
        ({"messages": [USER, FOUR], "tools": "add"}, "the tools, a list of objects or its text, are not JSON"),
    ],
)
def test_a_bad_line_is_refused_by_number(tmp_path: Path, row: Any, why: str) -> None:
    with pytest.raises(DataError) as refused:
        read(tmp_path, {"messages": [USER, FOUR]}, row)
    assert str(refused.value).startswith(f"{tmp_path / 'chats.jsonl'}, line 2: ")
    assert why in str(refused.value)


def test_an_empty_file_and_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no conversation; write one object per line"):
        read(tmp_path)
    with pytest.raises(DataError, match=r"demonstrations\.path: '.*none\.jsonl' is not a file"):
        read_chats(tmp_path / "none.jsonl")


# --- Whether a turn is learned from.

LEARNED = (
    *({"weight": 1}, {"weight": 1.0}, {"train": True}, {"loss_mask": 1}, {"masked": False}, {"weight": None}),
    {"weight": 1, "train": True},
)
CONTEXT = (
    *({key: 0} for key in ("weight", "loss", "loss_mask", "step_loss_mask", "loss_scale")),
    *({key: False} for key in ("train", "training", "trainable", "loss")),
    *({"weight": 0.0}, {"masked": True}, {"masked": 1}, {"weight": 0, "masked": True}),
)


@pytest.mark.parametrize(
    ("mark", "is_learned"), [*((mark, True) for mark in LEARNED), *((mark, False) for mark in CONTEXT)]
)
def test_a_turn_that_is_marked_is_context(tmp_path: Path, mark: Any, is_learned: bool) -> None:
    [chat] = read(tmp_path, {"messages": [USER, FOUR | mark, {"role": "user", "content": "Sure?"}, FOUR]})
    assert [exchange.is_learned for exchange in chat.exchanges] == [is_learned, True]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"messages": [USER, FOUR | {"weight": 0.5}]}, "'weight' of a message is 0.5; a turn is learned from or not"),
        ({"messages": [USER, FOUR | {"weight": "0"}]}, "'weight' of a message is '0'"),
        ({"messages": [USER, FOUR | {"loss_mask": [0, 1]}]}, "'loss_mask' of a message is [0, 1]"),
        ({"messages": [USER, FOUR | {"weight": 1, "train": False}]}, "weight and train of a message contradict"),
        ({"messages": [USER | {"train": True}, FOUR]}, "a message of role user has a mark to be learned from"),
        ({"messages": [USER, FOUR | {"weight": 0}]}, "none of its assistant messages is to be learned from"),
        ({"messages": [USER, FOUR], "weight": 0.5}, "'weight' is 0.5, and only messages are weighed"),
        ({"messages": [USER, FOUR], "mask_history": True}, "'mask_history' is True, and only messages are weighed"),
        ({"prompt": [USER, FOUR | {"weight": 1}, USER], "completion": "4"}, "an assistant message of the prompt"),
    ],
)
def test_a_weight_that_cannot_be_honoured_is_refused(tmp_path: Path, row: Any, why: str) -> None:
    with pytest.raises(DataError, match=r"line 1: ") as refused:
        read(tmp_path, row)
    assert why in str(refused.value)


# --- Which call a tool's message answers.

BOTH = ASKS | {"tool_calls": [CALL, {"id": "b", "function": {"name": "sub", "arguments": {"a": 1}}}]}


def told(id: str | None = None, name: str | None = None, content: str = "") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "name": name, "content": content or f"{id}{name}"}


@pytest.mark.parametrize(
    "results",
    [
        [told("a", content="of a"), told("b", content="of b")],
        [told("b", content="of b"), told("a", content="of a")],
        [told(name="sub", content="of b"), told(name="add", content="of a")],
        [told(content="of a"), told(content="of b")],
    ],
)
@pytest.mark.parametrize("mark", [{}, {"weight": 0}])
def test_a_result_is_laid_under_its_call_in_the_order_of_the_calls(tmp_path: Path, results: Any, mark: Any) -> None:
    [chat, half] = read(
        tmp_path,
        {"messages": [USER, BOTH | mark, *results, FOUR]},
        {"prompt": [USER, BOTH, *results], "completion": "4"},
    )
    assert chat.exchanges[0].then == (CallReply(0, "of a"), CallReply(1, "of b"))
    assert [m.content for m in half.opening[-2:]] == ["of a", "of b"]


@pytest.mark.parametrize(
    ("results", "why"),
    [
        ([told("c"), told("b")], "it says tool_call_id=c, and that message makes add (a), sub (b)"),
        ([told("a"), told("a")], "a tool message answers no tool call that is still open"),
        ([told("a", "sub"), told("b")], "it says tool_call_id=a, name=sub"),
        ([told("a"), told("b"), told()], "it says nothing, and that message makes"),
        ([told("a")], "makes 2 tool calls, and 1 tool messages answer them: sub (b) has no result"),
        ([USER], "makes 2 tool calls, and 0 tool messages answer them: add (a) has no result"),
        ([told("a"), USER, told("b")], "sub (b) has no result"),
    ],
)
def test_a_result_without_its_call_and_a_call_without_result_are_refused(
    tmp_path: Path, results: Any, why: str
) -> None:
    for row in ({"messages": [USER, BOTH, *results, FOUR]}, {"prompt": [USER, BOTH, *results], "completion": "4"}):
        with pytest.raises(DataError, match=r"line 1: ") as refused:
            read(tmp_path, row)
        assert why in str(refused.value)


def test_the_calls_that_end_a_conversation_have_no_results(tmp_path: Path) -> None:
    [chat] = read(tmp_path, {"messages": [USER, BOTH]})
    assert [len(exchange.turn.calls) for exchange in chat.exchanges] == [2]


# --- Keys and formats.


def test_what_says_nothing_to_a_model_is_listed(tmp_path: Path) -> None:
    row = {"id": 7, "source": "a book", "prompt": "2 + 2?", "weight": 1, "label": "sums", "images": [], "note": None}
    [chat] = read(tmp_path, row | {"messages": [USER, FOUR | {"id": "m1", "refusal": None, "annotations": []}]})
    assert chat.unused == {"id", "source", "prompt", "label", "id (of a message of role assistant)"}
    [strict] = read(tmp_path, {"messages": [USER, FOUR], "tools": [{"function": ADD | {"strict": True}}]})
    assert strict.unused == {"strict (of a tool)"}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"messages": [USER, FOUR | {"function_call": {"name": "add"}}]}, "has the key 'function_call', which is not"),
        ({"messages": [USER, FOUR | {"toolcalls": [CALL]}]}, "Did you mean 'tool_calls'?"),
        ({"messages": [USER, FOUR | {"train_detail": [{"begin_offset": 0}]}]}, "has the key 'train_detail'"),
        ({"messages": [USER, FOUR | {"prefix": True}]}, "has the key 'prefix'"),
        ({"messages": [USER | {"name": "Ann"}, FOUR]}, "a message of role user has the key 'name'"),
        ({"messages": [USER | {"tool_calls": [CALL]}, FOUR]}, "a message of role user has tool calls"),
        ({"messages": [{"role": "user", "text": "?"}, FOUR]}, "has the key 'text'"),
        ({"messages": [USER | {"content": 0}, FOUR]}, "the content of a message of role user must be a text"),
        (
            {"messages": [USER, FOUR | {"reasoning": "a", "reasoning_content": "b"}]},
            "reasoning by two names that differ",
        ),
        (
            {"messages": [USER, ASKS | {"tool_calls": [{"function": {"name": "add", "parameters": {"a": 1}}}]}]},
            "a tool call has the key 'parameters'",
        ),
        ({"messages": [USER, ASKS | {"tool_calls": [CALL, CALL]}]}, "two tool calls of one message have the id a"),
        ({"messages": [USER, FOUR], "tools": [{"name": "add", "input_schema": {}, "x": 1}]}, "a tool has the key 'x'"),
        ({"messages": [USER, FOUR], "tools": [{"type": "web_search"}]}, "a tool"),
        ({"messages": [USER, FOUR], "images": ["a.png"]}, "'images' is ['a.png'], and a conversation is text alone"),
        ({"messages": [USER, FOUR], "functions": [ADD]}, 'call it "tools"'),
        ({"prompt": "?", "completion": "4", "label": False}, "'label' says whether it is good"),
        ({"messages": [USER, FOUR], "chosen": [FOUR]}, "'chosen' is "),
        ({"messages": [USER, FOUR], "enable_thinking": True}, "the chat template is not given it"),
        ({"messages": [USER, FOUR], "prompt": "?", "completion": "4"}, "it has messages and prompt+completion"),
        ({"instruction": "2 + 2?", "input": "", "output": "4"}, "it is an Alpaca row; write "),
        ({"messages": [{"role": "system", "content": "x"}, USER, FOUR], "system": "y"}, "and a column 'system'"),
        ({"messages": [USER, FOUR], "split": "train_sft"}, "'split' is 'train_sft'; train, dev, test are allowed"),
        ({"conversations": [{"from": "bot", "value": "?"}]}, 'from "bot"; system, user, assistant, tool, human, gpt,'),
    ],
)
def test_a_key_that_may_change_the_meaning_is_refused(tmp_path: Path, row: Any, why: str) -> None:
    with pytest.raises(DataError, match=r"line 1: ") as refused:
        read(tmp_path, row)
    assert why in str(refused.value)


def test_sharegpt_is_read_as_the_same_messages(tmp_path: Path) -> None:
    call = json.dumps(CALL["function"])
    shared, ours = read(
        tmp_path,
        {
            "system": "Be brief.",
            "conversations": [
                {"from": "human", "value": "2 + 2?"},
                {"from": "gpt", "value": "5", "weight": 0},
                {"from": "human", "value": "Sure?"},
                {"from": "function_call", "value": call},
                {"from": "observation", "value": "4"},
                {"from": "gpt", "value": "4"},
            ],
            "tools": json.dumps([ADD]),
        },
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                *(USER, FOUR | {"content": "5", "train": False}, {"role": "user", "content": "Sure?"}),
                *(ASKS | {"tool_calls": [CALL | {"id": None}]}, {"role": "tool", "content": "4"}, FOUR),
            ],
            "tools": [{"type": "function", "function": ADD}],
        },
    )
    assert (shared.opening, shared.tools, shared.exchanges) == (ours.opening, ours.tools, ours.exchanges)
    assert [exchange.is_learned for exchange in ours.exchanges] == [False, True, True]


def test_the_split_of_a_row_is_its_own(tmp_path: Path) -> None:
    rows = [{"messages": [USER, FOUR], "split": split} for split in ("train", "test", None)]
    assert [chat.split for chat in read(tmp_path, *rows)] == ["train", "test", "train"]
