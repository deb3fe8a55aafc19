"""An OpenEnv server's environment, with one session for each attempt.

reset(columns of the task, a seed) -> observation --policy--> a text, or calls -> step(action) -> observation, reward

The reward is the sum of the server's rewards. An episode ends when the server says so, at the policy's final answer if
tools are offered, or at `max_turns`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from agentgrpo.core.errors import ConfigError, EnvironmentFailure
from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.numbers import number
from agentgrpo.core.types import Episode, Exit, Message, Task
from agentgrpo.core.untrusted import visible
from agentgrpo.environments.base import Observation, Scores, Turn
from agentgrpo.environments.factory import Attempt, EnvironmentDefaults, TurnLimits
from agentgrpo.environments.figures import Figures
from agentgrpo.environments.openenv.forms import (
    ActForm,
    Form,
    TextForm,
    call_of,
    form_of,
    result_of,
    spec_of,
    text_of,
)
from agentgrpo.environments.own import opening_of
from agentgrpo.environments.tools.environment import ToolEnvironment, ToolEnvironments
from agentgrpo.renderers.base import ToolRenderer
from agentgrpo.retrieval.lazy import extra_missing
from agentgrpo.tools.base import Tool, ToolResult, Workspace
from agentgrpo.tools.workspace import Workspaces

if TYPE_CHECKING:
    from agentgrpo.environments.openenv.server import EnvServer, Reply, ServerSession

TURNS, STEPS = "turns", "env_steps"


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenEnvEnvironments(EnvironmentDefaults):
    """Implements environments.factory.EnvironmentFactory. Raises ConfigError unless exactly one of url and command is
    given, and for values out of range."""

    name = "openenv"
    speaks_of_tools = True
    pays_itself = True
    """Its tasks need no reference answers."""
    renderer: ToolRenderer

    url: str | None = None
    """URL of a running server, such as http://localhost:8000; null = command is started."""
    command: str | None = None
    """Command of a server that the run starts and ends; it must listen on {port}. null = a server runs at url."""
    api_key_env: str | None = None
    """NAME of the environment variable with the server's key, sent as a Bearer token; null = no key is sent."""
    max_sessions: int | None = None
    """Concurrent sessions; further episodes wait. null = the server's own limit."""
    timeout_s: float = 60.0
    """Seconds for one answer from the server."""
    start_timeout_s: float = 60.0
    """Seconds until a started server must answer."""
    text_field: str | None = None
    """The action's field that takes the policy's text; null = its only field, or a tool call if it has more fields."""
    show: tuple[str, ...] = ()
    """Fields of observations that the policy sees; [] = all that are not empty."""
    max_turns: int | None = 20
    """Sampled turns; null = until the server ends the episode."""
    max_context: int | None = 4096
    """Tokens of an episode; null = as many as the engine holds."""
    min_context_left: int = 1
    """No turn is sampled with fewer tokens left."""
    max_tool_output_tokens: int = 1000
    """Tokens of one reply to a call; a longer reply is cut, which the policy can see."""

    workspaces: Workspaces = field(default_factory=Workspaces, init=False)

    def __post_init__(self) -> None:
        if (self.url is None) == (self.command is None):
            raise ConfigError(
                "environment=openenv asks one server: environment.url=http://localhost:8000, or "
                "'environment.command=\"python -m my_env.server.app --port {port}\"'; "
                f"{'both are' if self.url else 'neither is'} given"
            )
        least = {
            "max_sessions": 1,
            "max_turns": 1,
            "max_context": 2,
            "min_context_left": 1,
            "max_tool_output_tokens": 1,
        }
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ConfigError(f"environment.{name} {value}: {bound} or more is allowed; raise it")
        for name in ("timeout_s", "start_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"environment.{name} {getattr(self, name)}: more than 0 is allowed; raise it")
        _ = self.server

    @cached_property
    def server(self) -> EnvServer:
        """The server's client. Raises ConfigError if the packages of the extra `openenv` are missing."""
        try:
            from agentgrpo.environments.openenv.server import EnvServer
        except ImportError as e:
            raise extra_missing(e, what="environment=openenv", extra="openenv") from e
        return EnvServer(
            url=self.url,
            command=self.command,
            api_key_env=self.api_key_env,
            most=self.max_sessions,
            timeout_s=self.timeout_s,
            start_timeout_s=self.start_timeout_s,
        )

    @property
    def figures(self) -> Figures:
        return Figures(
            columns=(TURNS, STEPS),
            headline=("reward", TURNS, "cost"),
            by_kind=("reward", TURNS),
            quality="reward",
            is_graded=False,
            spending=TURNS,
        )

    @property
    def limits(self) -> TurnLimits:
        return TurnLimits(
            max_turns=self.max_turns, max_context=self.max_context, min_context_left=self.min_context_left
        )

    def make(self, attempt: Attempt) -> OpenEnvEnvironment:
        return OpenEnvEnvironment(self, attempt)

    async def form(self) -> Form:
        return form_of(await self.server.action_schema(), self.text_field)

    async def probe(self) -> None:
        """Raises EnvironmentFailure if the server does not describe its actions."""
        await self.form()

    def calling(self, tools: Mapping[str, Tool], attempt: Attempt) -> ToolEnvironment:
        """Return the tool environment that calls these tools for an attempt."""
        options = ToolEnvironments(
            renderer=self.renderer,
            tools=tools,
            workspaces=self.workspaces,
            max_turns=self.max_turns or 1,
            tool_timeout_s=2 * self.timeout_s,  # the session has its own limit
            max_tool_output_tokens=self.max_tool_output_tokens,
            tool_retries=0,
        )
        return ToolEnvironment(options, attempt)

    async def close(self) -> None:
        await self.server.close()
        await self.workspaces.close()


class OpenEnvEnvironment:
    """Implements environments.base.Environment."""

    def __init__(self, options: OpenEnvEnvironments, attempt: Attempt) -> None:
        self._options, self._attempt = options, attempt
        self._session: ServerSession | None = None
        self._form: Form | None = None
        self._calls: ToolEnvironment | None = None
        self._num_steps = 0
        self._paid = 0.0
        """Reward of the current turn."""
        self._is_over = False

    async def reset(self, task: Task) -> Observation:
        options = self._options
        self._form = await options.form()
        self._session, said = await options.server.session({"seed": seed_of(task), **task.metadata})
        if self._took(said):
            raise EnvironmentFailure(f"{options.server.shown}: the episode is over before it has begun", kind="shape")
        self._paid, self._num_steps = 0.0, 0
        messages = opening_of(task, self.text(said), options.name)
        if isinstance(self._form, TextForm):
            return Observation(messages=messages, metrics=self._metrics(0))
        self._calls = options.calling({tool.spec.name: tool for tool in await self._tools(self._form)}, self._attempt)
        opening = self._calls.opening(messages)
        return replace(opening, metrics={**opening.metrics, **self._metrics(0)})

    async def step(self, turn: Turn) -> Observation:
        self._paid = 0.0
        if self._calls is not None:
            said = await self._calls.step(turn)
            done = Exit.ANSWERED if self._is_over else said.done
            answer = said.answer if said.answer is not None or done is None else turn.content or None
            said = replace(said, done=done, answer=answer, messages=() if done else said.messages)
        else:
            said = await self._say(turn.content.strip())
        return replace(said, reward=self._paid, metrics={**said.metrics, **self._metrics(turn.index + 1)})

    async def act(self, action: Mapping[str, Any]) -> Reply | None:
        """Send an action and return the reply; None if the episode is already over. Raises RefusedByServer and
        EnvironmentFailure."""
        if self._is_over:
            return None
        assert self._session is not None
        said = await self._session.step(action)
        self._is_over = self._took(said)
        return said

    async def score(self, episode: Episode) -> Scores:
        """The server has already rewarded every turn."""
        return {"reward": 0.0}

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._calls is not None:
            await self._calls.close()

    async def _say(self, text: str) -> Observation:
        from agentgrpo.environments.openenv.server import RefusedByServer

        assert isinstance(self._form, TextForm)
        try:
            said = await self.act(self._form.action(text))
        except RefusedByServer as e:
            return Observation(messages=[Message(role="user", content=f"error: {e}")])
        assert said is not None
        if self._is_over:
            return Observation(done=Exit.ANSWERED, answer=text)
        return Observation(messages=[Message(role="user", content=self.text(said))])

    async def _tools(self, form: Form) -> Sequence[ServerTool]:
        if isinstance(form, ActForm):
            return [ServerTool(self, form.spec, is_act=True)]
        assert self._session is not None
        listed = await self._session.tools()
        if not listed:
            raise EnvironmentFailure(
                f"{self._options.server.shown} has actions without fields, and lists no tools: there is nothing to do",
                kind="shape",
            )
        return [ServerTool(self, spec_of(one), is_act=False) for one in listed]

    def text(self, said: Reply) -> str:
        return visible(text_of(_observed(said), self._options.show))

    def result(self, said: Reply) -> ToolResult:
        return result_of(_observed(said), self._options.show)

    def _took(self, said: Reply) -> bool:
        """Count a reply and its reward; return whether the episode is over."""
        self._num_steps += 1
        paid = said.get("reward")
        self._paid += 0.0 if paid is None else number(paid, f"{self._options.server.shown}: reward")
        return bool(said.get("done"))

    def _metrics(self, turns: int) -> dict[str, float]:
        return {TURNS: turns, STEPS: self._num_steps}


class ServerTool:
    """Implements tools.base.Tool: an action of one attempt. The calls of one turn are made one after the other."""

    exclusive = True

    def __init__(self, environment: OpenEnvEnvironment, spec: ToolSpec, *, is_act: bool) -> None:
        self.spec = spec
        self._environment, self._is_act = environment, is_act

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        from agentgrpo.environments.openenv.server import RefusedByServer

        try:
            said = await self._environment.act(arguments if self._is_act else call_of(self.spec.name, arguments))
        except RefusedByServer as e:
            return ToolResult.refused(str(e))
        if said is None:
            return ToolResult.refused("the episode is over")
        return ToolResult.ok(self._environment.text(said)) if self._is_act else self._environment.result(said)

    async def close(self) -> None:
        """The attempt closes its session."""


def seed_of(task: Task) -> int:
    """Return the task's seed, equal for all attempts."""
    return int.from_bytes(blake2b(task.id.encode(), digest_size=4).digest(), "big") >> 1


def _observed(said: Reply) -> Mapping[str, Any]:
    observation = said.get("observation")
    return observation if isinstance(observation, Mapping) else {"observation": observation}
