"""Environments of Gymnasium, played by a scripted policy."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError, EnvironmentFailure
from agentgrpo.core.types import Episode, Exit, Task
from agentgrpo.environments.published.gymnasium import GymnasiumEnvironments
from agentgrpo.tasks.seeds import Seeds
from tests.environments.published.playing_them import RENDERER, attempt

pytest.importorskip("gymnasium")

Make = Callable[..., GymnasiumEnvironments]
LAKE: dict[str, Any] = {
    "id": "FrozenLake-v1",
    "settings": {"is_slippery": False, "render_mode": "ansi"},
    "template": "{render}\nYou are at {observation}, paid {reward}.",
    "actions": ("left", "down", "right", "up"),
}


@pytest.fixture
async def made() -> AsyncIterator[Make]:
    all_made: list[GymnasiumEnvironments] = []

    def make(**options: Any) -> GymnasiumEnvironments:
        all_made.append(GymnasiumEnvironments(renderer=RENDERER, processes=1, **options))
        return all_made[-1]

    yield make
    for one in all_made:
        await one.close()


def task(id: str, seed: int = 3) -> Task:
    return Seeds(kinds=id, seed=seed, train_tasks=1, dev_tasks=1, test_tasks=1).split("train")[0]


def said(episode: Episode) -> list[str]:
    return [segment.text for branch in episode.branches for segment in branch.segments if not segment.sampled]


WAY = ["I go down", "down", "Right!", "right", "down", "right"]


async def test_a_lake_is_crossed(made: Make) -> None:
    before = random.getstate()
    episode = await attempt(made(**LAKE), task("FrozenLake-v1"), WAY)
    assert random.getstate() == before
    assert (episode.exit, episode.metrics["score"], episode.metrics["reward"]) == (Exit.ANSWERED, 1.0, 1.0)
    assert episode.turn_rewards == (0.0,) * 5 + (1.0,)
    opening = (
        "Answer each turn with one action: left, down, right, up.\n[S]FFF\nFHFH\nFFFH\nHFFG\nYou are at 0, paid 0.0."
    )
    assert opening in said(episode)[0]
    assert "SFFF\n[F]HFH\nFFFH\nHFFG\nYou are at 4, paid 0.0." in said(episode)[1]


async def test_what_is_no_action_is_told_and_moves_nothing(made: Make) -> None:
    episode = await attempt(made(**LAKE), task("FrozenLake-v1"), ["Downwards", *WAY])
    assert "That is no action: the actions are left, down, right, up." in said(episode)[1]
    assert (episode.metrics["invalid_actions"], episode.metrics["turns"], episode.metrics["score"]) == (1.0, 7.0, 1.0)


async def test_a_seed_is_the_group_s(made: Make) -> None:
    options = {"template": "{observation[0]} against {observation[1]}", "actions": ("stick", "hit")}
    cards = made(id="Blackjack-v1", **options)
    hands = []
    for seed in (3, 3, 4, 5):
        episode = await attempt(cards, task("Blackjack-v1", seed), ["hit", *["stick"] * 9])
        hands.append(said(episode))
    assert hands[0] == hands[1]
    assert len({*map(tuple, hands)}) == 3


async def test_texts_are_as_they_are(made: Make) -> None:
    from tests.environments.published.echo import Echo

    echo = made(
        id="echo", function=Echo, settings={"word": "Velmor"}, template="{observation}", opening="Echo! {actions}: "
    )
    episode = await attempt(echo, task("echo"), ["far too long for it", "Graz", " Velmor\n"])
    assert "Echo! any text: Velmor" in said(episode)[0]
    assert ["That is no action" in said(episode)[1], "Graz" in said(episode)[2]] == [True, True]
    assert (episode.metrics["invalid_actions"], episode.metrics["score"]) == (1.0, 1.0)


async def test_a_module_is_imported_by_the_spelling_of_gymnasium(made: Make) -> None:
    id = "tests.environments.published.echo:published/Echo-v0"
    episode = await attempt(made(id=id, settings={"word": "Velmor"}), task(id), ["Velmor"])
    assert episode.metrics["score"] == 1.0


async def test_minigrid_is_played_as_it_is_published(made: Make) -> None:
    pytest.importorskip("minigrid")
    id = "minigrid:MiniGrid-Empty-5x5-v0"
    actions = ("left", "right", "forward", "pickup", "drop", "toggle", "done")
    template = "{observation[mission]}, facing {observation[direction]}: {observation[image]}"
    way = ["forward", "forward", "right", "forward", "forward"]
    episode = await attempt(made(id=id, actions=actions, template=template), task(id), way)
    assert "get to the green goal square, facing 0: [[[2, 5, 0]," in said(episode)[0]
    assert "facing 1:" in said(episode)[3]
    assert episode.turn_rewards == pytest.approx((0.0, 0.0, 0.0, 0.0, 1 - 0.9 * 5 / 100))
    with pytest.raises(ConfigError, match=r"Did you mean 'minigrid:MiniGrid-Empty-5x5-v0'\?"):
        made(id="MiniGrid-Empty-5x5-v0").rehearse(task("MiniGrid-Empty-5x5-v0"), max_context=2048)


def test_environments_that_cannot_begin(made: Make) -> None:
    for options, message in (
        ({"id": "CartPole-v1"}, r"CartPole-v1: it observes Box\(.*discrete or text observations, and one discrete"),
        ({"id": "FrozenLak-v1"}, "Environment `FrozenLak` doesn't exist"),
        ({**LAKE, "actions": ("left", "right")}, r"it takes 4 actions; environment\.actions names 2"),
        ({**LAKE, "template": "{board}"}, r"'board'\); observation, render, info, reward, actions are allowed"),
        ({"id": "no.such.module:Env-v0"}, "no.such.module:Env-v0: No module named 'no'"),
        ({"id": "json:Env-v0"}, "Environment `Env` doesn't exist"),
        ({"id": "JSON-v0"}, r"`JSON` doesn't exist.* Did you mean 'json:JSON-v0'\?"),
        ({"id": "a:b:c"}, r"environment\.id=a:b:c; a registered id is allowed, or package\.module:ID"),
        ({"id": "CliffWalking-v1", "template": "{render}"}, r"it renders a NoneType; a text is needed: .*=ansi"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            made(**options).rehearse(task(str(options["id"])), max_context=2048)
        assert "\n" not in str(caught.value)


async def test_what_is_paid_is_a_number_or_a_failure_that_says_what_it_was(made: Make) -> None:
    from tests.environments.published.paying import SEEDS, Paying

    environment = made(id="Paying", function=Paying)
    of = task("Paying")
    for name, seed in SEEDS.items():
        at = replace(of, metadata={**of.metadata, "seed": seed})
        if name.startswith("good"):
            worth = 1.0 if name in ("good int64", "good numpy bool", "good bool") else 0.5
            assert (await attempt(environment, at, ["1"])).metrics["reward"] == worth
        else:
            with pytest.raises(EnvironmentFailure, match=r"BadValue: Paying.step: reward is .*; a number .*is allowed"):
                await attempt(environment, at, ["1"])
