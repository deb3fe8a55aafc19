"""Gymnasium environments as text; imported only in a separate process."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from agentgrpo.core.numbers import number
from agentgrpo.environments.published.playing import Seen
from agentgrpo.environments.published.playing import play as played

_COLOURED = re.compile(r"\x1b\[[0-9;]*m(.*?)\x1b\[0m", re.DOTALL)
_FIELDS = ("observation", "render", "info", "reward", "actions")
_DISCRETE = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Text)
_MOST_NUMBERS = 1000
"""Most whole numbers in a box; a larger box is taken for a picture."""


class GymGame:
    """Implements playing.Game. The action is the last action name in a turn; for a text space it is the whole turn.
    Raises ValueError for an environment whose observations or actions cannot be written as text."""

    def __init__(self, made: Any, seed: int, *, opening: str, template: str, actions: Sequence[str]) -> None:
        self._env, self._seed, self._opening, self._template = made, seed, opening, template
        acts = made.action_space
        if not _is_sayable(made.observation_space) or not isinstance(acts, spaces.Discrete | spaces.Text):
            raise ValueError(
                f"it observes {made.observation_space} and takes {acts}; discrete or text observations, and one "
                f"discrete or text action, are allowed, and boxes of up to {_MOST_NUMBERS} whole numbers: give others "
                "a wrapper, by environment.function"
            )
        if isinstance(acts, spaces.Text):
            self._names: list[str] | None = None
        else:
            self._names = [*actions] or [str(i) for i in range(int(acts.start), int(acts.start + acts.n))]
            if len({name.lower() for name in self._names}) != acts.n:
                raise ValueError(f"it takes {acts.n} actions; environment.actions names {len({*self._names})}")

    def open(self) -> Seen:
        observation, info = self._env.reset(seed=self._seed)
        text = self._told(self._template, observation, info, 0.0)
        return _seen(self._told(self._opening, observation, info, 0.0) + text)

    def act(self, action: str) -> Seen:
        chosen = self._chosen(action)
        if chosen is None:
            what = f"the actions are {self._said}" if self._names else f"{self._env.action_space} is taken"
            return _seen(f"That is no action: {what}.", is_invalid=True)
        observation, paid, is_over, is_cut, info = self._env.step(chosen)
        reward = number(paid, f"{type(self._env.unwrapped).__name__}.step: reward")
        text = self._told(self._template, observation, info, reward)
        return _seen(text, is_done=bool(is_over or is_cut), reward=reward)

    @property
    def _said(self) -> str:
        return ", ".join(self._names) if self._names else "any text"

    def _chosen(self, action: str) -> Any:
        """Return the action that the environment takes; None if the turn has no action."""
        space = self._env.action_space
        if self._names is None:
            return action.strip() if space.contains(action.strip()) else None
        longest = sorted(self._names, key=len, reverse=True)
        named = re.findall(rf"(?<!\w)({'|'.join(map(re.escape, longest))})(?!\w)", action, re.IGNORECASE)
        number = {name.lower(): i for i, name in enumerate(self._names)}
        return int(space.start) + number[named[-1].lower()] if named else None

    def _told(self, template: str, observation: Any, info: Mapping[str, Any], reward: float) -> str:
        values = {"observation": _plain(observation), "info": _plain(info), "reward": reward, "actions": self._said}
        if "{render" in template:
            if not isinstance(drawn := self._env.render(), str):
                raise ValueError(
                    f"it renders a {type(drawn).__name__}; a text is needed: environment.settings.render_mode=ansi"
                )
            values["render"] = _COLOURED.sub(r"[\1]", drawn).strip("\n")
        try:
            return template.format(**values)
        except (KeyError, IndexError, TypeError, AttributeError) as e:
            raise ValueError(f"template {template!r}: {e!r}; {', '.join(_FIELDS)} are allowed in braces") from e


def _seen(text: str, *, is_done: bool = False, reward: float = 0.0, is_invalid: bool = False) -> Seen:
    return {"text": text, "is_done": is_done, "reward": reward, "is_invalid": is_invalid}


def _is_sayable(space: Any) -> bool:
    if isinstance(space, spaces.Tuple | spaces.Dict):
        return all(map(_is_sayable, space.values() if isinstance(space, spaces.Dict) else space))
    if isinstance(space, spaces.Box):
        return bool(np.issubdtype(space.dtype, np.integer)) and np.prod(space.shape) <= _MOST_NUMBERS
    is_text = space.dtype is not None and space.dtype.kind == "U"  # e.g. MiniGrid's missions, with their own class
    return isinstance(space, _DISCRETE) or is_text


def _plain(value: Any) -> Any:
    """Convert numpy types, which print their own names, to Python's."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(_plain, value))
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _made(game: str, settings: Mapping[str, Any], function: str | None) -> Any:
    if function is not None:
        return resolve_name(function)(**settings)
    if ":" in game and (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        return gymnasium.make(game, **settings)
    except (gymnasium.error.Error, ImportError) as e:
        raise ValueError(" ".join(str(e).split()) + _meant(game)) from e


def _meant(game: str) -> str:
    """Suggest package:id if a package has the name that the id begins with."""
    package = re.split(r"\W", game)[0].lower()
    return f" Did you mean '{package}:{game}'?" if ":" not in game and package and find_spec(package) else ""


def play(
    *,
    game: str,
    settings: dict[str, Any],
    function: str | None,
    opening: str,
    template: str,
    names: list[str],
    key: str,
    seed: int,
    actions: list[str],
) -> str:
    def make() -> GymGame:
        made = _made(game, settings, function)
        return GymGame(made, seed, opening=opening, template=template, actions=names)

    return json.dumps(played(make, key=key, seed=seed, actions=actions))
