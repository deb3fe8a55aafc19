"""An episode with an external policy, which submits its turns one at a time.

reset(task) -> Seen --external policy--> act(turn) -> Seen ... done, with the reward that a run would give

It uses the ordinary episode loop with an engine that waits for the submitted turns: limits, records and reward are the
same as in a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import cast

from agentgrpo.core.errors import ConfigError, EnvironmentFailure
from agentgrpo.core.messages import ParsedTurn, ToolReply, ToolSpec
from agentgrpo.core.types import Episode, EpisodeGroup, Message, Task
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.environments.base import Environment, Observation, Scores, Turn
from agentgrpo.environments.conversation import Driven
from agentgrpo.environments.factory import Attempt, EnvironmentFactory
from agentgrpo.renderers.base import Renderer, ToolRenderer
from agentgrpo.rewards.base import GroupReward
from agentgrpo.rollout.groups import run_episode
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.rollout.scoring import score_groups

STREAM = "served"
UNLIMITED = 2**20
"""Context size in tokens where no model limits it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An observation for the external policy."""

    messages: Sequence[Message | ToolReply]
    tools: Sequence[ToolSpec] | None
    """Tools available from here on, if they are announced anew."""
    fresh_context: bool
    """The messages are the whole context: earlier messages are gone."""
    episode: Episode | None = None
    """The finished episode, once it is over."""
    reward: float = 0.0
    """Reward of the whole episode, once it is over."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Host:
    """The parts that hosted episodes share."""

    environment: EnvironmentFactory
    renderer: Renderer
    reward: GroupReward
    sampling: SamplingParams
    """Only max_tokens applies to the submitted turns."""

    async def has_tools(self, task: Task) -> bool:
        """Return whether turns are tool calls rather than plain text. Raises ConfigError for an environment in which an
        external policy cannot act."""
        environment = self.environment.make(Attempt(task=task, sample_index=0, stream=STREAM, max_context=UNLIMITED))
        try:
            if isinstance(environment, Driven):
                raise ConfigError(
                    f"environment={self.environment.name} runs a program that acts; an environment that answers turns "
                    "can be served: search, tools, memory, or one of your own"
                )
            return (await environment.reset(task)).tools is not None
        finally:
            await environment.close()


class HostedEpisode:
    """Runs one hosted episode at a time."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._running: asyncio.Task[None] | None = None
        self._seen: asyncio.Queue[Seen | Exception] = asyncio.Queue()
        self._said: asyncio.Queue[str] = asyncio.Queue()
        self._observation = Observation()

    async def reset(self, task: Task, *, sample_index: int = 0) -> Seen:
        """Return the opening of an attempt at `task`; an attempt in progress is abandoned. Raises
        EnvironmentFailure."""
        await self.close()
        self._seen, self._said = asyncio.Queue(), asyncio.Queue()
        self._running = asyncio.get_running_loop().create_task(self._run(task, sample_index))
        return await self._next()

    async def act(self, turn: ParsedTurn | str) -> Seen:
        """Submit a turn and return the environment's response. Raises EnvironmentFailure, also if no attempt is in
        progress."""
        if self._running is None or self._running.done():
            raise EnvironmentFailure("no episode is under way; reset the environment", kind="order")
        renderer = self._host.renderer
        text = turn if isinstance(turn, str) else cast(ToolRenderer, renderer).write(turn)
        # text beyond this length would be cut off anyway with the tokens past max_tokens
        self._said.put_nowait(text[: 2 * self._host.sampling.max_tokens * renderer.longest_token])
        return await self._next()

    async def close(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def _next(self) -> Seen:
        seen = await self._seen.get()
        if isinstance(seen, Exception):
            raise seen
        return seen

    async def _run(self, task: Task, sample_index: int) -> None:
        host = self._host
        engine = ScriptedEngine(
            encode=host.renderer.encode_action, decode=host.renderer.decode, script=self._ask, max_context=UNLIMITED
        )
        watched = cast(EnvironmentFactory, _Watched(host.environment, self))
        runner = PolicyRunner(environment=watched, engine=engine, renderer=host.renderer)
        try:
            episode = await run_episode(runner, task, sample_index=sample_index, stream=STREAM, sampling=host.sampling)
            if episode.failure is not None:
                raise EnvironmentFailure(episode.failure.message, kind=episode.failure.kind)
            [scored] = await score_groups(host.reward, [EpisodeGroup(task=task, episodes=(episode,))])
            [result] = scored.rewards
            if result is None:
                why = next((f.message for f in scored.failures if f is not None), "its total is no number")
                raise EnvironmentFailure(f"the episode could not be scored: {why}", kind="reward")
        except Exception as e:
            self._seen.put_nowait(e)
        else:
            self._seen.put_nowait(replace(self._shown(), episode=episode, reward=result.total))

    async def _ask(self, key: SeedKey, context: str) -> str:
        self._seen.put_nowait(self._shown())
        return await self._said.get()

    def _shown(self) -> Seen:
        seen = self._observation
        return Seen(messages=seen.messages, tools=seen.tools, fresh_context=seen.fresh_context)

    def watch(self, observation: Observation) -> Observation:
        self._observation = observation
        return observation


class _Watched:
    """A factory whose environments report their observations to `by`."""

    def __init__(self, real: EnvironmentFactory, by: HostedEpisode) -> None:
        self.name, self.figures, self.limits = real.name, real.figures, real.limits
        self._real, self._by = real, by

    def make(self, attempt: Attempt) -> Environment:
        return _WatchedEnvironment(cast(Environment, self._real.make(attempt)), self._by)


class _WatchedEnvironment:
    def __init__(self, real: Environment, by: HostedEpisode) -> None:
        self._real, self._by = real, by

    async def reset(self, task: Task) -> Observation:
        return self._by.watch(await self._real.reset(task))

    async def step(self, turn: Turn) -> Observation:
        return self._by.watch(await self._real.step(turn))

    async def score(self, episode: Episode) -> Scores:
        return await self._real.score(episode)

    async def close(self) -> None:
        await self._real.close()
