"""environment=gymnasium: Gymnasium environments with discrete or text observations and actions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agentgrpo.core.errors import ConfigError
from agentgrpo.environments.published.games import GameEnvironments
from agentgrpo.tasks.seeds import names_of

_IN_MODULE = re.compile(r"[A-Za-z_][\w.]*:[^:]+$")


@dataclass(frozen=True, kw_only=True, eq=False)
class GymnasiumEnvironments(GameEnvironments):
    """Implements environments.factory.EnvironmentFactory. Raises ConfigError."""

    name = "gymnasium"

    id: str | tuple[str, ...]
    """Id of a registered environment, such as FrozenLake-v1, or of one in another package, such as
    minigrid:MiniGrid-Empty-5x5-v0, which is then imported; or several ids. With `function`, any name."""
    function: Callable[..., Any] | None = None
    """package.module:function that makes your own environment, called with `settings`; null = gymnasium.make."""
    opening: str = "Answer each turn with one action: {actions}.\n"
    """Text before the first observation, with the same fields as `template`."""
    template: str = "Observation: {observation}"
    """Text that the policy sees after a step, with the fields {observation}, {reward}, {info}, {actions}, and {render},
    which needs settings.render_mode=ansi; {observation[0]} is the observation's first element."""
    actions: tuple[str, ...] = ()
    """Names of discrete actions, in order; empty = their numbers."""

    @cached_property
    def games(self) -> tuple[str, ...]:
        names = names_of(self.id, "environment.id")
        if self.function is None and (odd := [name for name in names if ":" in name and not _IN_MODULE.match(name)]):
            raise ConfigError(
                f"environment.id={odd[0]}; a registered id is allowed, or package.module:ID for one that this module "
                "registers"
            )
        return names

    def asked(self, game: str) -> Mapping[str, Any]:
        made = self.function
        return {
            "game": game,
            "settings": dict(self.settings),
            "function": None if made is None else f"{made.__module__}:{made.__qualname__}",
            "opening": self.opening,
            "template": self.template,
            "names": list(self.actions),
        }
