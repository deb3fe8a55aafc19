"""environment=textarena: games of TextArena, alone or against a scripted opponent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agentgrpo.config.registry import REGISTRY
from agentgrpo.config.values import Count
from agentgrpo.environments.published.games import GameEnvironments
from agentgrpo.tasks.seeds import names_of


@dataclass(frozen=True, kw_only=True, eq=False)
class TextArenaEnvironments(GameEnvironments):
    """Implements environments.factory.EnvironmentFactory."""

    name = "textarena"

    game: str | tuple[str, ...]
    """An id of the package, such as Wordle-v0, or several."""
    opponent: Callable[[str], str] | str = "random"
    """Plays all other seats: random, or package.module:function that takes the text shown by the game and returns a
    move."""
    players: Count | None = None
    """Number of players; null = the fewest that the game takes."""

    @cached_property
    def games(self) -> tuple[str, ...]:
        return names_of(self.game, "environment.game")

    def asked(self, game: str) -> Mapping[str, Any]:
        plays = self.opponent
        known: Mapping[str, str] = REGISTRY["opponent"]  # type: ignore[assignment]
        location = known[plays] if isinstance(plays, str) else f"{plays.__module__}:{plays.__qualname__}"
        return {"game": game, "settings": dict(self.settings), "opponent": location, "players": self.players}
