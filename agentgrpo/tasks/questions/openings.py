"""The prompt of a row: a text, or messages as TRL, verl, OpenRLHF, ShareGPT and Alpaca write them. All of it opens the
episode, except the instructions that Search-R1 published with its questions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentgrpo.core.types import Message, Role
from agentgrpo.tasks.records import Node, list_in, shown

_ROLES: Mapping[Any, Role] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "chatgpt", "bard", "bing"), "assistant"),
}
_ALLOWED = "system, user, assistant"
_OF_LEARNING = ("weight", "loss", "train", "training", "trainable")
"""Keys of a message that matter only for training on it, and so not in a prompt."""
_CHATS = ("messages", "conversations")
"""Columns of whole conversations: the assistant's last turn is the answer, not part of the prompt."""
_PARTS = ("instruction", "input")
ASKED = ("question", "prompt", "messages", "problem", "conversations", *_PARTS)
"""Columns that may hold the question."""
_PUBLISHED = re.compile(r"Answer the given question\b.*<answer>.*</answer>.*Question:(?P<question>.*)", re.DOTALL)
"""The prompts of Search-R1, and their versions in verl and SkyRL."""
_CUT = "of its prompts the question alone, without the published instructions for other tags"
_LONGER = "its prompt opens the episode, for it holds the question"
_ANSWERED = "what the assistant says last is not part of what is asked: it is the answer where no column has one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    column: str
    """The column with the question."""
    question: str
    """The user's last message."""
    messages: tuple[Message, ...] = ()
    """The whole opening; () = the question alone."""
    answer: str = ""
    """The assistant's reply to it, if the row has one."""
    note: str = ""
    """A change to the row that its author may not expect."""

    @property
    def read(self) -> tuple[str, ...]:
        """Columns that the opening contains completely."""
        return ("question", "prompt") if self.note == _CUT else () if self.column in _PARTS else (self.column,)


def opening_of(node: Node, column: str | None = None, setting: str = "") -> Opening:
    """Read the opening of a row. column: the user's name for the column with the question, which is then read whole.
    Raises DataError."""
    asks = column or _column(node)
    value = _chat_in(node.object().get(asks))
    if isinstance(value, list):
        chat = Node(node.path, f"{node.at}.{asks}".lstrip("."), value)
        messages, answer = _chat(chat, is_whole=asks in _CHATS)
    else:
        messages, answer = _texts(node, asks, setting), ""
    if asks in ("instruction", *_CHATS) and (system := node.optional_text("system")) and messages[0].role != "system":
        messages = (Message(role="system", content=system), *messages)
    question = messages[-1].content
    published = _PUBLISHED.fullmatch(question) if column is None and asks == "prompt" else None
    if published and (bare := node.optional_text("question") or published["question"].strip()):
        return Opening(column=asks, question=bare, note=_CUT)
    is_chat = isinstance(value, list) or len(messages) > 1
    is_longer = column is None and asks == "prompt" and node.has("question")
    note = _ANSWERED if answer else _LONGER if is_longer else ""
    return Opening(column=asks, question=question, messages=messages if is_chat else (), answer=answer, note=note)


def _chat_in(value: object) -> object:
    """Parse messages that are written out in a text; another value is returned unchanged."""
    found = list_in(value)
    return found if isinstance(found, list) and all(isinstance(m, Mapping) for m in found) else value


def _column(node: Node) -> str:
    """Choose the column with the question; a prompt that contains the question is preferred to it."""
    present = [name for name in ASKED if node.has(name)]
    if {"question", "prompt"} <= {*present} and isinstance(question := node.object()["question"], str):
        prompt = node.object()["prompt"]
        said = [m.get("content") for m in prompt if isinstance(m, Mapping)] if isinstance(prompt, list) else [prompt]
        if any(question.strip() in _flat(text) for text in said):
            return "prompt"
    return present[0] if present else "question"


def _flat(content: object) -> str:
    """The text of a message's content, which may be a list of parts."""
    parts = content if isinstance(content, list) else [content]
    return "".join(str(part.get("text") or "") if isinstance(part, Mapping) else str(part or "") for part in parts)


def _texts(node: Node, asks: str, setting: str) -> tuple[Message, ...]:
    """Messages of a row whose question is a text, with Alpaca's input and history."""
    text = node.required(asks, setting)
    if asks != "instruction":
        return (Message(role="user", content=text),)
    more = node.optional_text("input")
    said: list[Message] = []
    for pair in node.list("history") if node.has("history") else ():
        turns = [turn.string() for turn in pair.elements()]
        if len(turns) != 2:
            pair.refuse(f"a list of {len(turns)}; pairs of what was asked and answered are needed")
        said += [Message(role="user", content=turns[0]), Message(role="assistant", content=turns[1])]
    return (*said, Message(role="user", content=f"{text}\n\n{more}" if more else text))


def _chat(chat: Node, *, is_whole: bool) -> tuple[tuple[Message, ...], str]:
    """Return (messages up to the user's last one, the assistant's reply to it)."""
    messages = [_message(node) for node in chat.elements()]
    answer = messages.pop().content if is_whole and messages and messages[-1].role == "assistant" else ""
    if not messages or messages[-1].role != "user":
        chat.refuse("a list of messages whose last one is the user's is needed")
    return tuple(messages), answer


def _message(node: Node) -> Message:
    said = node.object()
    speaker, text = ("from", "value") if "role" not in said and "from" in said else ("role", "content")
    name = said.get(speaker)
    role = _ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        node.refuse(f"{speaker} {shown(name)}; {_ALLOWED} are allowed")
    read = (speaker, text, *_OF_LEARNING)
    if unread := [key for key, value in said.items() if key not in read and value not in (None, "", [], {})]:
        node.get(unread[0]).refuse(
            f"{shown(said[unread[0]])}; a message of a prompt has {speaker} and {text}: take '{unread[0]}' out"
        )
    content = said.get(text)
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        node = Node(node.path, node.at, {**said, text: "".join(_part(part) for part in node.list(text))})
    return Message(role=role, content=node.required(text))


def _part(node: Node) -> str:
    """The text of a part of a message."""
    kind = node.object().get("type")
    if kind not in ("text", "input_text"):
        node.refuse(f"a part of type {shown(kind)}; a policy reads parts of type text: take the others out")
    text = node.object().get("text")
    if not isinstance(text, str):
        node.get("text").refuse(f"{shown(text)}; a text is needed")
    return text
