"""Text games, played in separate processes: an adapter describes its games, everything else is here.

reset -> opening -> ( turn -> the game's next message ) ... -> the reward of every turn
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from agentgrpo.config.values import Count, Positive
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Episode, Exit, Message, Task
from agentgrpo.environments.base import Observation, Scores, Turn
from agentgrpo.environments.factory import Attempt, EnvironmentDefaults, TurnLimits
from agentgrpo.environments.figures import Figures
from agentgrpo.environments.published.aside import Aside, Refused, refusal, refuse_missing
from agentgrpo.renderers.base import Renderer


@dataclass(frozen=True, kw_only=True, eq=False)
class GameEnvironments(EnvironmentDefaults):
    """Implements environments.factory.EnvironmentFactory. Raises ConfigError."""

    name: ClassVar[str]
    """Name of the package, its extra and its presets."""
    speaks_of_tools = True
    """Chat models are prompted with their own chat template."""
    pays_itself = True
    renderer: Renderer

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that the game is made with."""
    system_prompt: str | None = None
    """System message before the opening; null = no system message."""
    max_turns: Count = 20
    """Sampled turns; a game that is not over by then is worth the rewards paid so far."""
    max_context: int | None = 4096
    """Tokens of an episode; null = as many as the engine holds."""
    timeout_s: Positive = 60.0
    """Seconds for one move; after that the game's process is ended and the attempt has failed."""
    processes: Count = 2
    """Processes that play the games; each plays many."""

    def __post_init__(self) -> None:
        refuse_missing(self.name)
        _ = self.games

    @property
    @abstractmethod
    def games(self) -> tuple[str, ...]:
        """Names of the games that are played; they are the kinds of the tasks."""

    @abstractmethod
    def asked(self, game: str) -> Mapping[str, Any]:
        """Return the arguments of the worker's `play` besides the history."""

    @cached_property
    def aside(self) -> Aside:
        worker = f"agentgrpo.environments.published.{self.name}_worker:play"
        return Aside(worker, what=f"environment={self.name}", processes=self.processes, timeout_s=self.timeout_s)

    @property
    def figures(self) -> Figures:
        return Figures(
            columns=("score", "turns", "invalid_actions", "finished"),
            headline=("score", "turns", "cost"),
            by_kind=("score", "turns", "invalid_actions"),
            quality="score",
            is_graded=False,
            spending="turns",
        )

    @property
    def limits(self) -> TurnLimits:
        return TurnLimits(max_turns=self.max_turns, max_context=self.max_context)

    def opened(self, text: str) -> list[Message]:
        system = [] if self.system_prompt is None else [Message(role="system", content=self.system_prompt)]
        return [*system, Message(role="user", content=text)]

    def make(self, attempt: Attempt) -> GameEnvironment:
        return GameEnvironment(self, attempt)

    def rehearse(self, task: Task, *, max_context: int) -> None:
        """See environments.factory.EnvironmentFactory. Opens every game."""
        if task.metadata.get("kind") not in self.games or "seed" not in task.metadata:
            raise ConfigError(
                f"task {task.id} is no game of environment={self.name}, which has {', '.join(self.games)}; choose "
                f"task={self.name}"
            )
        room = min(max_context, self.max_context or max_context)
        for game in self.games:
            asked = {"key": "", "seed": task.metadata["seed"], "actions": ()}
            try:
                seen = self.aside.call_now({**self.asked(game), **asked})
            except Refused as e:
                raise refusal(f"environment={self.name}, {game}", e) from e
            if (taken := len(self.renderer.open(self.opened(seen["text"])))) >= room:
                raise ConfigError(
                    f"{game} opens with {taken} tokens and environment.max_context={self.max_context} (the engine "
                    f"holds {max_context}) leaves no room for a turn; raise the lower of the two"
                )

    async def close(self) -> None:
        self.aside.close()


class GameEnvironment:
    """Implements environments.base.Environment. All attempts of a group play the same seed."""

    def __init__(self, options: GameEnvironments, attempt: Attempt) -> None:
        self._options = options
        self._asked = {
            **options.asked(attempt.task.metadata["kind"]),
            "key": f"{attempt.seed}|{attempt.number}",
            "seed": attempt.task.metadata["seed"],
        }
        self._actions: list[str] = []
        self._paid: list[float] = []
        self._invalid = 0

    async def reset(self, task: Task) -> Observation:
        seen = await self._play()
        return Observation(messages=self._options.opened(seen["text"]), metrics=self._metrics(is_done=False))

    async def step(self, turn: Turn) -> Observation:
        self._actions.append(turn.content)
        seen = await self._play()
        self._paid.append(seen["reward"])
        self._invalid += seen["is_invalid"]
        told = [] if seen["is_done"] else [Message(role="user", content=seen["text"])]
        return Observation(
            messages=told,
            done=Exit.ANSWERED if seen["is_done"] else None,
            answer=turn.content if seen["is_done"] else None,
            reward=seen["reward"],
            metrics=self._metrics(is_done=seen["is_done"]),
        )

    async def score(self, episode: Episode) -> Scores:
        """Turns are rewarded as they are played."""
        return {"reward": 0.0}

    async def close(self) -> None:
        """The worker drops the game by itself."""

    async def _play(self) -> Mapping[str, Any]:
        key = str(self._asked["key"])
        seen: Mapping[str, Any] = await self._options.aside.call({**self._asked, "actions": self._actions}, key=key)
        return seen

    def _metrics(self, *, is_done: bool) -> Scores:
        counted = {"turns": float(len(self._actions)), "invalid_actions": float(self._invalid)}
        return {**counted, "score": float(sum(self._paid)), "finished": float(is_done)}
