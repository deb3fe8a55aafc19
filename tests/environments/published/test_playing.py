"""Games side by side in one process, and again from their seed, are as each alone."""

from __future__ import annotations

import pytest

from agentgrpo.environments.published import playing
from tests.environments.published.strange import Dice


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "_open", playing.OrderedDict())
    monkeypatch.setattr(Dice, "made", 0)


def told(key: str, seed: int, *actions: str) -> str:
    return str(playing.play(Dice, key=key, seed=seed, actions=actions)["text"])


def test_games_side_by_side_are_as_each_alone() -> None:
    alone = [told("a", 1), told("a", 1, "x"), told("a", 1, "x", "y")]
    together = []
    for actions in ((), ("x",), ("x", "y")):
        together.append(told("b", 1, *actions))
        told("c", 2, *actions)
    assert together == alone
    assert Dice.made == 3


def test_a_game_that_is_not_open_is_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [told("a", 1), told("a", 1, "x"), told("a", 1, "x", "y")]
    monkeypatch.setattr(playing, "_MOST", 0)
    assert [told("b", 1), told("b", 1, "x"), told("b", 1, "x", "y")] == whole
    assert Dice.made == 4


def test_another_history_is_another_game() -> None:
    told("a", 1, "x")
    assert told("a", 1, "y", "z") == told("b", 1, "y", "z")


def test_a_game_that_is_over_is_forgotten() -> None:
    told("a", 1, "x")
    told("b", 1, "stop")
    assert [*playing._open] == ["a"]
