"""Chooses a policy's renderer: the one that `model.renderer` names, or the one its tokenizer was trained with."""

from __future__ import annotations

from collections.abc import Sequence

from agentgrpo.core.errors import ConfigError, did_you_mean
from agentgrpo.core.messages import ToolSpec
from agentgrpo.renderers.base import Renderer, ToolRenderer
from agentgrpo.renderers.chat import ChatRenderer
from agentgrpo.renderers.chatml import CHATML
from agentgrpo.renderers.family import ChatFamily
from agentgrpo.renderers.fenced import CHATML_FENCED, GEMMA
from agentgrpo.renderers.llama3 import LLAMA3
from agentgrpo.renderers.mistral import MISTRAL
from agentgrpo.renderers.plain import PlainRenderer
from agentgrpo.renderers.qwen3 import QWEN3
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.renderers.tags import TagsRenderer
from agentgrpo.renderers.tokens import FastTokenizer

# in the order that auto tries: Qwen3's templates have all marks of ChatML's, and those all marks of tool-less ChatML's
FAMILIES: tuple[ChatFamily, ...] = (MISTRAL, LLAMA3, QWEN3, CHATML, CHATML_FENCED, GEMMA)
NAMES = ("auto", "plain", "react", "tags", *(family.name for family in FAMILIES))


def choose(name: str, *, tokenizer: FastTokenizer) -> Renderer:
    """Return the renderer `name` for an agent without tools; auto is plain. Raises ConfigError for an unknown name and
    for a tokenizer that the renderer cannot use."""
    return (
        PlainRenderer(tokenizer=tokenizer) if name in ("auto", "plain") else choose_for_tools(name, tokenizer=tokenizer)
    )


def choose_for_tools(
    name: str, *, tokenizer: FastTokenizer, describe_tools: bool = False, tools: Sequence[ToolSpec] = ()
) -> ToolRenderer:
    """Return the renderer `name` for an agent with tools; auto is the family of the tokenizer's chat template, or react
    if no family matches. describe_tools: for react and tags, which describe tools only if asked; families always do.
    tools: the tools that will be offered, for tags. Raises ConfigError like `choose`, and for plain."""
    if name not in NAMES:
        raise ConfigError(f"renderer '{name}'; {', '.join(NAMES)} are allowed.{did_you_mean(name, NAMES)}")
    if name == "plain":
        raise ConfigError(
            "renderer 'plain' does not support tools; choose react, or auto for the tokenizer's own format"
        )
    if name == "tags":
        return TagsRenderer(tokenizer=tokenizer, tools=tools, describe_tools=describe_tools)
    family = recognise(tokenizer) if name == "auto" else next((f for f in FAMILIES if f.name == name), None)
    if family is None:
        return ReactRenderer(tokenizer=tokenizer, describe_tools=describe_tools)
    return ChatRenderer(tokenizer=tokenizer, family=family)


def recognise(tokenizer: FastTokenizer) -> ChatFamily | None:
    """Return the family by the marks in the chat template; None for an unknown template or without one."""
    template = str(tokenizer.chat_template or "")  # a mapping of several templates is spelled out
    return next((f for f in FAMILIES if all(mark in template for mark in f.recognised_by)), None)
