"""Games of TextArena, played by a scripted policy."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Episode, Exit, Task
from agentgrpo.environments.published.textarena import TextArenaEnvironments
from agentgrpo.tasks.seeds import Seeds
from tests import builders
from tests.environments.published.playing_them import RENDERER, attempt
from tests.environments.published.strange import guessing

pytest.importorskip("textarena")

Make = Callable[..., TextArenaEnvironments]


@pytest.fixture
async def made() -> AsyncIterator[Make]:
    all_made: list[TextArenaEnvironments] = []

    def make(game: str, **options: Any) -> TextArenaEnvironments:
        all_made.append(TextArenaEnvironments(renderer=RENDERER, game=game, processes=1, **options))
        return all_made[-1]

    yield make
    for one in all_made:
        await one.close()


def task(game: str, seed: int) -> Task:
    return Seeds(kinds=game, train_tasks=seed + 1, dev_tasks=1, test_tasks=1).split("train")[seed]


def said(episode: Episode) -> list[str]:
    return [segment.text for branch in episode.branches for segment in branch.segments if not segment.sampled]


GUESSES = [f"[{number}]" for number in range(1, 21)]


async def test_a_game_for_one(made: Make) -> None:
    """Its seed is the group's, every message is told once, and the whole leaves our random numbers alone."""
    game, before = made("GuessTheNumber-v0"), random.getstate()
    episodes = [await attempt(game, task("GuessTheNumber-v0", 5), GUESSES, sample_index=i) for i in (0, 1)]
    assert random.getstate() == before
    assert said(episodes[0]) == said(episodes[1])
    assert "You are playing Guess The Number" in said(episodes[0])[0]
    assert "".join(said(episodes[0])).count("You are playing Guess The Number") == 1
    assert "The target number is higher." in said(episodes[0])[1]
    assert episodes[0].exit is Exit.ANSWERED
    assert 0 <= episodes[0].metrics["score"] <= 1
    assert episodes[0].metrics["score"] == episodes[0].metrics["reward"]
    assert episodes[0].metrics["turns"] == len(episodes[0].turns)
    found = {(await attempt(game, task("GuessTheNumber-v0", seed), GUESSES)).metrics["turns"] for seed in range(6)}
    assert len(found) > 1


async def test_moves_that_are_none_are_told_and_end_the_game_as_it_says(made: Make) -> None:
    episode = await attempt(made("GuessTheNumber-v0"), task("GuessTheNumber-v0", 5), ["I", "don't", "know"])
    assert "attempted an invalid move" in said(episode)[1]
    assert (episode.metrics["invalid_actions"], episode.metrics["turns"], episode.metrics["finished"]) == (2, 2, 1)


async def test_a_game_that_is_cut_short_is_worth_nothing_more(made: Make) -> None:
    episode = await attempt(made("GuessTheNumber-v0", max_turns=1), task("GuessTheNumber-v0", 5), ["[1]"])
    assert (episode.exit, episode.metrics["reward"], episode.metrics["finished"]) == (Exit.MAX_TURNS, 0.0, 0.0)


async def test_a_game_for_two_against_a_script(made: Make) -> None:
    """Seed 4 begins, seed 5 is second. The function plays all other seats: the first free square."""
    game = made("TicTacToe-v0", opponent=guessing)
    first = await attempt(game, task("TicTacToe-v0", 4), ["[4]", "[2]", "[6]"])
    assert (first.metrics["score"], first.metrics["turns"], first.metrics["invalid_actions"]) == (1.0, 3.0, 0.0)
    assert "[Player 1] [0]" in said(first)[1]
    second = await attempt(game, task("TicTacToe-v0", 5), ["[4]", "[8]", "[7]"])
    assert "[Player 0] [0]" in said(second)[0]
    assert second.metrics["score"] == -1.0


async def test_a_random_opponent_plays_the_same_for_all_attempts_of_a_group(made: Make) -> None:
    game = made("TicTacToe-v0")
    episodes = [
        await attempt(game, task("TicTacToe-v0", 5), ["[3]", "[7]", "[8]", "[0]"], sample_index=i) for i in (0, 1)
    ]
    assert said(episodes[0]) == said(episodes[1])
    assert episodes[0].metrics == episodes[1].metrics


def test_games_that_cannot_begin(made: Make) -> None:
    for game, options, message in (
        ("GessTheNumber-v0", {}, r"TextArena has no such game\. Did you mean 'GuessTheNumber-v0'"),
        (
            "GuessTheNumber-v0",
            {"settings": {"max_number": "many"}},
            "environment=textarena, GuessTheNumber-v0: TypeError",
        ),
        ("GuessTheNumber-v0", {"max_context": 20}, "leaves no room for a turn"),
    ):
        with pytest.raises(ConfigError, match=message):
            made(game, **options).rehearse(task(game, 0), max_context=2048)
    with pytest.raises(ConfigError, match=r"is no game of environment=textarena, .*; choose task=textarena"):
        made("GuessTheNumber-v0").rehearse(builders.task(), max_context=2048)


@pytest.mark.slow
def test_a_game_that_needs_data_says_which(made: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "NLTK_DATA"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # where nobody lets it be downloaded
    with pytest.raises(ConfigError, match="Wordle-v0: this game needs data of nltk, which is not here: python -m nltk"):
        made("Wordle-v0").rehearse(task("Wordle-v0", 0), max_context=2048)
