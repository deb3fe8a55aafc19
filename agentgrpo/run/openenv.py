"""Any environment as an OpenEnv server, built from the package's own classes: any OpenEnv client can act in it.

    action        {text}; if there are tools {text, tool_calls: [{name, arguments}]}
    observation   {messages, tools, fresh_context, exit, metrics}, reward, done

A turn with calls makes these calls; a turn without calls is the final answer. Rewards are 0 until the episode is over;
the last one is the run's whole reward.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, Field

from agentgrpo.core.errors import DataError
from agentgrpo.core.messages import ParsedTurn
from agentgrpo.core.types import Message, Task, ToolCall
from agentgrpo.core.untrusted import visible
from agentgrpo.rollout.hosted import Host, HostedEpisode, Seen
from agentgrpo.tasks.base import SPLITS, TaskDataset

UNBOUND = ("/mcp", "/reset", "/step")
"""OpenEnv's paths that start episodes without a connection, which nothing ends. Here an episode is a session of /ws."""


class TextAction(Action):  # type: ignore[misc]
    """The next turn."""

    text: str = Field(description="The turn, as a policy would write it")


class CallField(BaseModel):
    """A tool call."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class TurnAction(Action):  # type: ignore[misc]
    """The next turn: calls of tools, or the final answer."""

    text: str = Field(default="", description="What is said beside the calls; without calls the final answer")
    tool_calls: list[CallField] = Field(default_factory=list)


class TurnObservation(Observation):  # type: ignore[misc]
    """What a policy would see next."""

    messages: list[dict[str, str]] = Field(default_factory=list, description="New ones: role, content")
    tools: list[dict[str, Any]] = Field(default_factory=list, description="On offer from here on, as OpenAI has them")
    fresh_context: bool = Field(default=False, description="The messages are all there is; those before are gone")
    exit: str = Field(default="", description="Why the episode has ended")
    metrics: dict[str, float] = Field(default_factory=dict, description="Of the episode, once it has ended")


def app_of(host: Host, dataset: TaskDataset, *, name: str, has_tools: bool, max_sessions: int) -> FastAPI:
    """Serve `dataset`'s tasks: `reset(split="train", index=3)`; or with a seed, taken modulo the number of tasks in the
    split; or with neither, for the tasks one after the other."""
    counter = itertools.count()

    class ServedEnvironment(Environment[Action, TurnObservation, State]):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._episode = HostedEpisode(host)
            self._loop: asyncio.AbstractEventLoop | None = None
            self._state = State()

        async def reset_async(
            self,
            seed: int | None = None,
            episode_id: str | None = None,
            split: str = "train",
            index: int | None = None,
            **kwargs: Any,
        ) -> TurnObservation:
            self._loop = asyncio.get_running_loop()
            if kwargs:
                known = "seed, episode_id, split and index"
                raise DataError(f"reset has no argument {visible(next(iter(kwargs)))[:40]}; {known} are allowed")
            _refuse_odd(seed=seed, episode_id=episode_id, split=split, index=index)
            tasks = dataset.split(split)
            if index is None:
                index = (next(counter) if seed is None else seed) % len(tasks)
            task = _task(tasks, split, index)
            self._state = State(episode_id=episode_id or task.id, step_count=0)
            return _observed(await self._episode.reset(task, sample_index=seed or 0))

        async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> TurnObservation:
            self._state.step_count += 1
            return _observed(await self._episode.act(_turn(action)))

        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> TurnObservation:
            raise RuntimeError("an episode belongs to an event loop; await reset_async, as OpenEnv's server does")

        def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> TurnObservation:
            raise RuntimeError("an episode belongs to an event loop; await step_async, as OpenEnv's server does")

        @property
        def state(self) -> State:
            return self._state

        def close(self) -> None:
            """Close the episode on its event loop; OpenEnv calls this in a thread."""
            if self._loop is not None and not self._loop.is_closed():
                asyncio.run_coroutine_threadsafe(self._episode.close(), self._loop)

        def list_splits(self) -> list[str]:
            return [split for split in SPLITS if dataset.split(split)]

        def num_tasks(self, split: str) -> int:
            _refuse_odd(split=split)
            return len(dataset.split(split))

        def list_tasks(self, split: str) -> list[dict[str, Any]]:
            return self.get_task_range(split)

        def get_task(self, split: str, index: int) -> dict[str, Any]:
            _refuse_odd(split=split, index=index)
            return _said(_task(dataset.split(split), split, index), index)

        def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
            _refuse_odd(split=split, start=start, stop=stop)
            tasks = dataset.split(split)
            return [_said(tasks[index], index) for index in range(*slice(start, stop).indices(len(tasks)))]

    app: FastAPI = create_fastapi_app(
        ServedEnvironment,
        TurnAction if has_tools else TextAction,
        TurnObservation,
        max_concurrent_envs=max_sessions,
        **({"env_name": name} if _knows_names() else {}),
    )
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) not in UNBOUND]
    return app


def _knows_names() -> bool:
    """Return whether OpenEnv takes the environment's name; servers of 0.10 list tasks under it."""
    return "env_name" in create_fastapi_app.__annotations__


def _refuse_odd(**given: object) -> None:
    """Raise DataError for a value that is given but not of its type: a client may send anything."""
    for name, value in given.items():
        kind, allowed = (str, "a text") if name in ("split", "episode_id") else (int, "a whole number")
        if value is not None and type(value) is not kind:
            raise DataError(f"{name} {visible(repr(value))[:40]}; {allowed} is allowed")


def _task(tasks: Sequence[Task], split: str, index: int) -> Task:
    if not 0 <= index < len(tasks):
        raise IndexError(f"index {index}: the split {split} has {len(tasks)} tasks")
    return tasks[index]


def _said(task: Task, index: int) -> dict[str, Any]:
    """Return the public part of a task, which a policy may see."""
    return {"id": task.id, "index": index, "question": task.question}


def _turn(action: Action) -> ParsedTurn | str:
    if isinstance(action, TextAction):
        return str(action.text)
    if not isinstance(action, TurnAction):
        raise DataError(f"{type(action).__name__} is no turn")
    calls = tuple(ToolCall(name=call.name, arguments=call.arguments) for call in action.tool_calls)
    return ParsedTurn(calls=calls, content=action.text) if calls else ParsedTurn(answer=action.text)


def _observed(seen: Seen) -> TurnObservation:
    messages = [
        {"role": m.role, "content": m.content} if isinstance(m, Message) else {"role": "tool", "content": m.text}
        for m in seen.messages
    ]
    tools = [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in seen.tools or ()
    ]
    over = seen.episode
    return TurnObservation(
        messages=messages,
        tools=tools,
        fresh_context=seen.fresh_context,
        exit="" if over is None else over.exit.value,
        metrics={} if over is None else dict(over.metrics),
        reward=seen.reward,
        done=over is not None,
    )
