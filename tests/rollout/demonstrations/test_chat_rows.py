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
        ({"messages": [FOUR]}, "nothing is said before the assistant's first turn"),
        ({"messages": ["hello"]}, "'messages' must be a list of messages"),
        ({"messages": [{"role": "human", "content": "x"}, FOUR]}, 'role "human"; system, user, assistant, tool are'),
        ({"messages": [USER, FOUR, FOUR]}, "two assistant messages follow each other"),
        ({"messages": [USER, {"role": "assistant", "content": " "}]}, "an assistant message says nothing"),
        ({"messages": [USER, {"role": "assistant", "content": 4}]}, "the content of a message of role assistant must"),
        ({"messages": [USER, FOUR, {"role": "system", "content": "x"}, FOUR]}, "a system message after"),
        ({"messages": [USER, FOUR, TELLS, FOUR]}, "a tool message answers no tool call"),
        ({"messages": [USER, ASKS, TELLS, TELLS | {"tool_call_id": "b"}, FOUR]}, "a tool message answers no tool call"),
        (
            {"messages": [USER, ASKS | {"tool_calls": [{"function": {"name": "add", "arguments": "{"}}]}]},
            "are not JSON",
        ),
        ({"messages": [USER, ASKS | {"tool_calls": [{"arguments": {}}]}]}, "a tool call must be"),
        ({"messages": [USER, FOUR], "tools": [{"description": "x"}]}, "a tool must be"),
        ({"messages": [USER, FOUR], "tools": "add"}, "'tools' must be a list of objects"),
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
