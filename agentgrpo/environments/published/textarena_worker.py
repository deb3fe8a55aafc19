"""TextArena games for one player, with scripted opponents; imported only in a separate process."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from functools import partial
from pkgutil import resolve_name
from typing import Any

import textarena as ta

from agentgrpo.core.errors import did_you_mean
from agentgrpo.core.numbers import number
from agentgrpo.environments.published.playing import Seen
from agentgrpo.environments.published.playing import play as played

_MOVE = re.compile(r"\[[^\[\]\n]+\]")
_MOST_PLAYERS = 15


class RandomOpponent:
    """Plays one of the bracketed moves in the last line that has any: 'Available Moves: [0], [4]'."""

    def __call__(self, observation: str) -> str:
        offered = [moves for line in observation.splitlines() if (moves := _MOVE.findall(line))]
        return random.choice(offered[-1]) if offered else "[pass]"


class TextGame:
    """Implements playing.Game. The player sees each message of others once. Its seat depends on the seed. Raises
    ValueError for a game that is unknown or cannot be played here."""

    def __init__(
        self,
        game: str,
        settings: Mapping[str, Any],
        seed: int,
        opponent: Callable[[str], str],
        players: int | None,
    ) -> None:
        """players: None = the fewest that the game takes."""
        self._seed, self._opponent = seed, opponent
        self._players = range(1, _MOST_PLAYERS + 1) if players is None else (players,)
        if game not in ta.envs.registration.ENV_REGISTRY:
            known = [name for name in ta.envs.registration.ENV_REGISTRY if not name.endswith(("-raw", "-train"))]
            raise ValueError(f"TextArena has no such game.{did_you_mean(game, known)}")
        self._make = partial(ta.make, game, **settings)

    def open(self) -> Seen:
        self._begin()
        self._seat = self._seed % self._state.num_players
        return self._until_turn(is_invalid=False)

    def act(self, action: str) -> Seen:
        self._is_done, _ = self._env.step(action)
        info = (self._state.game_info or {}).get(self._seat, {})
        is_invalid = bool(getattr(self._state, "error_count", 0) or info.get("invalid_move"))
        return self._until_turn(is_invalid=is_invalid)

    @property
    def _state(self) -> Any:
        return self._base.state

    def _begin(self) -> None:
        refused: Exception | None = None
        for players in self._players:
            try:
                self._env = self._base = self._make()
                while isinstance(self._base, ta.Wrapper):
                    self._base = self._base.env
                self._env.reset(num_players=players, seed=self._seed)
            except LookupError as e:
                if "nltk" not in str(e):
                    raise
                raise ValueError(
                    "this game needs data of nltk, which is not here: python -m nltk.downloader words "
                    "averaged_perceptron_tagger_eng, or choose another game"
                ) from e
            except (AssertionError, ValueError) as e:  # the game refuses this number of players, or anything else
                refused = e
                continue
            self._is_done = False
            return
        raise ValueError(f"this game cannot begin: {refused}")

    def _until_turn(self, *, is_invalid: bool) -> Seen:
        while not self._is_done and self._state.current_player_id != self._seat:
            _, observation = self._env.get_observation()
            self._is_done, _ = self._env.step(str(self._opponent(str(observation))))
        rewards = self._env.close()[0] if self._is_done else None
        paid = (rewards or {}).get(self._seat, 0.0)
        is_reason = paid is None or isinstance(paid, str)  # some games give a reason instead of a reward
        reward = 0.0 if is_reason else number(paid, f"{type(self._base).__name__}: reward")
        return {"text": self._news(), "is_done": self._is_done, "reward": reward, "is_invalid": is_invalid}

    def _news(self) -> str:
        told, self._state.observations[self._seat] = self._state.observations[self._seat], []
        names = self._state.role_mapping
        return "\n".join(
            text if sender == ta.GAME_ID else f"[{names.get(sender, f'Player {sender}')}] {text}"
            for sender, text, _ in told
            if sender != self._seat
        )


def play(
    *,
    game: str,
    settings: dict[str, Any],
    opponent: str,
    players: int | None,
    key: str,
    seed: int,
    actions: list[str],
) -> str:
    """opponent: module:attribute of a function, or of a class whose instances are callable."""
    plays = resolve_name(opponent)
    make = partial(TextGame, game, settings, seed, plays() if isinstance(plays, type) else plays, players)
    return json.dumps(played(make, key=key, seed=seed, actions=actions))
