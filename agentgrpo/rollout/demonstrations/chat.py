"""Conversations from a file, written by the policy's own renderer in the way an episode of the policy would be.

Each conversation is replayed: environments.conversation opens it, takes the assistant's turns from a script instead of
sampling them, and appends the messages in between. So tokens and mask are those of the rollout loop, and no turn has to
be located in a text that was tokenised as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import cast

from agentgrpo.config.settings import RolloutSettings
from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.messages import ParsedTurn, ToolReply
from agentgrpo.core.types import Branch, Episode, EpisodeGroup, Exit, FinishReason, Message, Task
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.environments.conversation import Conversation
from agentgrpo.environments.factory import Attempt, TurnLimits
from agentgrpo.renderers.base import Renderer, ToolRenderer
from agentgrpo.renderers.plain import PlainRenderer
from agentgrpo.rollout.demonstrations.base import Demonstrations, demonstrated
from agentgrpo.rollout.demonstrations.chat_rows import CallReply, Chat, read_chats
from agentgrpo.rollout.loop import PolicyRunner


class ChatFile:
    """A JSON lines file (rollout.demonstrations.chat_rows)."""

    def __init__(self, *, path: str) -> None:
        """Raises DataError for a bad line."""
        self._path = path
        read = read_chats(path)
        self._chats = [chat for chat in read if chat.split == "train"]
        others = len(read) - len(self._chats)
        note = f"{others} of {len(read)} conversations of {path} are of another split than train"
        if not self._chats:
            raise DataError(f"{note}; give some to learn from, or take the column 'split' out")
        self._notes = [f"{note}, and are left out"] if others else []
        if unused := sorted(frozenset().union(*(chat.unused for chat in read))):
            self._notes.append(f"{path}: not read, as they say nothing to a model: {', '.join(unused)}")
        self.fingerprint = sha256(repr([chat.row.object() for chat in self._chats]).encode("utf-8")).hexdigest()

    def by(self, policy: PolicyRunner, settings: RolloutSettings) -> Demonstrations:
        """Write every conversation once, so that those that cannot be written are known before the first step. A
        conversation that does not fit into the context is left out."""
        recite = partial(_recite, policy.renderer, policy.engine.max_context)

        async def fitting() -> list[Chat]:
            return [chat for chat in self._chats if await recite(chat) is not None]

        fit = asyncio.run(fitting())
        long = len(self._chats) - len(fit)
        note = f"{long} of {len(self._chats)} conversations of {self._path} are longer than {policy.engine.max_context}"
        if not fit:
            raise DataError(f"{note} tokens, the context of the model; give shorter ones")
        chats = {chat.id: chat for chat in fit}

        async def show(tasks: Sequence[Task]) -> list[EpisodeGroup]:
            found = [await recite(chats[task.id]) for task in tasks]
            return [EpisodeGroup(task=e.task, episodes=(demonstrated(e),)) for e in found if e is not None]

        notes = [*self._notes, *([f"{note} tokens, the context of the model, and are left out"] if long else [])]
        return Demonstrations(tasks=[_task(chat) for chat in fit], show=show, notes=notes)


def _task(chat: Chat) -> Task:
    return Task(id=chat.id, messages=chat.opening, references=(), data_source="chat")


async def _recite(renderer: Renderer, max_context: int, chat: Chat) -> Episode | None:
    """Return the conversation as an episode in which turns that are not learned from are masked; None if it does not
    fit. Raises DataError if the renderer cannot write it."""
    _refuse_unwritable(renderer, chat)
    texts = [_written(renderer, exchange.turn, chat) for exchange in chat.exchanges]

    def script(key: SeedKey, context: str) -> str:
        return texts[key.turn]

    engine = ScriptedEngine(
        encode=renderer.encode_action, decode=renderer.decode, script=script, max_context=max_context
    )
    task = _task(chat)
    attempt = Attempt(task=task, sample_index=0, stream="demonstrations", max_context=max_context)
    conversation = Conversation(engine, renderer, attempt, SamplingParams(max_tokens=max_context), TurnLimits())
    try:
        if not conversation.open(chat.opening, chat.tools):
            return None
    except ConfigError as e:
        chat.row.refuse(str(e))
    for text, exchange in zip(texts, chat.exchanges, strict=True):
        turn = await conversation.sample()
        if turn is None or turn.finish_reason is FinishReason.LENGTH:
            return None
        if len(turn.token_ids) < len(renderer.encode_action(text)):
            end = renderer.decode(turn.token_ids[-1:])
            chat.row.refuse(f"an assistant message holds {end!r}, which ends a turn; take it out")
        thought = _parsed(renderer, turn.token_ids).reasoning if renderer.in_turns else turn.reasoning
        if exchange.turn.reasoning and thought.strip() != exchange.turn.reasoning.strip():
            chat.row.refuse("an assistant message has reasoning, which this model's format has no place for")
        if [call.name for call in turn.calls] != [call.name for call in exchange.turn.calls]:
            chat.row.refuse("a tool call is not read as it is written in this model's format; look at its name")
        then = [
            ToolReply(call=turn.calls[s.call], text=s.text) if isinstance(s, CallReply) else s for s in exchange.then
        ]
        if conversation.tell(then) < len(then):
            return None
    last = chat.exchanges[-1].turn
    learned = iter([exchange.is_learned for exchange in chat.exchanges])
    segments = tuple(replace(s, masked=s.sampled and not next(learned)) for s in conversation.branch.segments)
    return Episode(
        task=task,
        sample_index=0,
        branches=(Branch(segments=segments),),
        answer=last.content if last.answer is None else last.answer,
        exit=Exit.ANSWERED,
        metrics={"tool_turns": float(sum(bool(exchange.turn.calls) for exchange in chat.exchanges))},
        environment="chat",
    )


def _parsed(renderer: Renderer, token_ids: Sequence[int]) -> ParsedTurn:
    """Parse a turn with the renderer; a Conversation parses its turns only if it has tools."""
    return cast(ToolRenderer, renderer).parse(token_ids)


def _written(renderer: Renderer, turn: ParsedTurn, chat: Chat) -> str:
    """Return the text that the policy would sample for the turn, including the token that ends it."""
    if renderer.in_turns or chat.tools is not None:
        return cast(ToolRenderer, renderer).write(turn)
    return turn.content + renderer.decode(renderer.stop_token_ids[:1])


def _refuse_unwritable(renderer: Renderer, chat: Chat) -> None:
    """Raise DataError if the conversation has a part that the renderer cannot express."""
    if chat.tools is not None and isinstance(renderer, PlainRenderer):
        chat.row.refuse("it has tools, and the renderer writes none; choose another, such as model.renderer=chatml")
    told = any(isinstance(said, Message) for exchange in chat.exchanges for said in exchange.then)
    if told and not renderer.in_turns:
        chat.row.refuse(
            "a user message follows an assistant's, and the renderer has no turns for it; choose one that has, such as "
            "model.renderer=chatml, or chatml_fenced where the chat template takes no tools"
        )
