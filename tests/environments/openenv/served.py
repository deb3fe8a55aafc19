"""OpenEnv environments as their authors write them, served by the package's own server. It knows nothing of agentgrpo.

python served.py KIND PORT [SESSIONS]
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    number: int
    note: str = ""


class Answer(Observation):
    text: str = ""
    seed: int = -1


class Guessing(Environment[Guess, Answer, State]):
    """A number below ten is to be found: by the seed."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Answer:
        self.number = (seed or 0) % 10
        return Answer(text="Guess.", seed=seed or 0)

    def step(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> Answer:
        if action.number > 99:
            raise RuntimeError("the wheel is broken")
        found = action.number == self.number
        return Answer(text="Found." if found else "No.", reward=1.0 if found else -0.1, done=found)


class Shop(MCPEnvironment):
    """Tools of an MCP server; the second apple pays."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    state = State()

    def __init__(self) -> None:
        self.basket: list[str] = []
        server = FastMCP("shop")

        @server.tool
        def add(item: str, count: int = 1) -> str:
            """Put something into the basket."""
            if item == "stone":
                raise ValueError("stones are not sold")
            self.basket += [item] * count
            return f"{len(self.basket)} in the basket"

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation(metadata={"message": f"Buy two {kwargs.get('wanted', 'apples')}."})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation()

    async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        said = await super().step_async(action, timeout_s=timeout_s, **kwargs)
        bought = self.basket.count("apples") == 2
        return said.model_copy(update={"reward": float(bought), "done": bought})


KINDS = {"guessing": (Guessing, Guess, Answer), "shop": (Shop, CallToolAction, CallToolObservation)}
if __name__ == "__main__":
    kind, port, *sessions = sys.argv[1:]
    app = create_app(*KINDS[kind], env_name=kind, max_concurrent_envs=int(*sessions or ["64"]))
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
