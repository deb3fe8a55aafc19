"""Several players in one episode: each seat has a context, a reward and an advantage of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.types import Episode, EpisodeGroup, Exit, Message, RewardResult, ScoredGroup, Task
from agentgrpo.environments.base import Observation, Turn
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.samples import group_advantages, is_zero_variance, to_samples
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.records.trajectories import read_trajectories, write_trajectories
from agentgrpo.rewards.own import EnvironmentTerm
from agentgrpo.rewards.reward import Reward
from tests.environments.test_blocking import episodes_of
from tests.environments.test_own import episode_of

SEATS = ("white", "black")


def says(text: str) -> Message:
    return Message(role="user", content=text)


class Duel:
    """Each seat speaks twice; the longer speech in all wins what the other one loses."""

    async def reset(self, task: Task) -> Observation:
        self.said: list[str] = []
        return Observation(messages=[says("You are white.")], seat="white")

    async def step(self, turn: Turn) -> Observation:
        assert turn.index == len(self.said)
        self.said.append(turn.content)
        if len(self.said) == 4:
            return Observation(done=Exit.ANSWERED, answer=turn.content)
        seat = SEATS[len(self.said) % 2]
        heard = [says(f"They said {turn.content}.")]
        opening = [says("You are black.")] if len(self.said) == 1 else []
        return Observation(messages=[*opening, *heard], seat=seat, metrics={"words": [1.0] * len(self.said)})

    async def score(self, episode: Episode) -> Mapping[str, Any]:
        lengths = [sum(map(len, self.said[seat::2])) for seat in (0, 1)]
        won = float((lengths[0] > lengths[1]) - (lengths[0] < lengths[1]))
        return {"rewards": {"white": won, "black": -won}}


class Paid(Duel):
    """Each speech is paid by its length at once, and white loses half a point at the end."""

    async def step(self, turn: Turn) -> Observation:
        return replace(await super().step(turn), reward=float(len(turn.content)))

    async def score(self, episode: Episode) -> Mapping[str, Any]:
        return {"reward/white": -0.5}


def texts(episode: Episode) -> list[list[str]]:
    return [[s.text for s in branch.segments if s.sampled] for branch in episode.branches]


async def test_each_seat_has_a_context_of_its_own() -> None:
    episode = await episode_of(Duel, "aaa", "b", "cc", "d")
    assert (episode.exit, episode.seats, episode.failure) == (Exit.ANSWERED, SEATS, None)
    assert texts(episode) == [["aaa", "cc"], ["b", "d"]]
    white, black = ("".join(s.text for s in branch.segments) for branch in episode.branches)
    assert "You are white." in white
    assert "They said b." in white
    assert "You are black." not in white
    assert "They said aaa." in black
    assert "They said cc." in black
    assert "You are white." not in black


async def test_what_ends_the_episode_may_say_something_to_the_seat_that_it_names() -> None:
    class Telling(Duel):
        async def step(self, turn: Turn) -> Observation:
            said = await super().step(turn)
            return replace(said, messages=[says("You lost.")], seat="white") if said.done else said

    episode = await episode_of(Telling, "aaa", "b", "cc", "d")
    assert ["You lost." in "".join(s.text for s in branch.segments) for branch in episode.branches] == [True, False]


async def test_each_seat_is_paid_what_it_won() -> None:
    episode = await episode_of(Duel, "aaa", "b", "cc", "d")
    found = {name: episode.metrics[name] for name in ("reward/white", "reward/black", "reward")}
    assert found == {"reward/white": 1.0, "reward/black": -1.0, "reward": 0.0}
    assert episode.metrics_by_turn["reward"] == (0.0, 1.0, 0.0, -1.0)


class Misnamed(Duel):
    async def score(self, episode: Episode) -> Mapping[str, Any]:
        return {"rewards": {"White": 1.0, "black": -1.0}}


class Unnamed(Duel):
    async def step(self, turn: Turn) -> Observation:
        return replace(await super().step(turn), seat="")


class Numbered(Duel):
    async def reset(self, task: Task) -> Observation:
        return replace(await super().reset(task), seat=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Misnamed, "Misnamed.score pays White; the seats that took a turn are white, black: pay these"),
        (Unnamed, "some observations name a seat and some do not; name it in each of them"),
        (Numbered, "Numbered.reset: seat has a int; str is allowed"),
    ],
)
async def test_a_seat_that_is_none_is_a_failure_that_names_it(kind: type, said: str) -> None:
    failure = (await episode_of(kind, "aaa", "b", "cc", "d")).failure
    assert failure is not None
    assert said in failure.message


async def test_what_belongs_to_turns_is_in_the_order_of_the_branches() -> None:
    episode = await episode_of(Paid, "aaa", "b", "cc", "dddd")
    assert texts(episode) == [["aaa", "cc"], ["b", "dddd"]]
    assert episode.turn_rewards == (3.0, 2.0, 1.0, 4.0)
    assert episode.metrics_by_turn["reward"] == (3.0, 1.5, 1.0, 4.0)
    found = {name: episode.metrics[name] for name in ("reward/white", "reward/black", "reward")}
    assert found == {"reward/white": 4.5, "reward/black": 5.0, "reward": 4.75}


async def scored(kind: type, *speeches: Sequence[str]) -> ScoredGroup:
    episodes = [replace(await episode_of(kind, *said), sample_index=i) for i, said in enumerate(speeches)]
    reward = Reward(judge=ExactMatch(), terms={"play": EnvironmentTerm("reward", weight=2.0)})
    return await reward.score(EpisodeGroup(task=episodes[0].task, episodes=tuple(episodes)))


GAMES = (("aaa", "b", "cc", "d"), ("a", "bb", "c", "dd"), ("a", "bbb", "c", "d"))
"""White wins the first one alone."""


async def test_an_advantage_compares_a_seat_with_itself_in_the_other_episodes() -> None:
    group = await scored(Duel, *GAMES)
    assert [r and r.branches for r in group.rewards] == [(2.0, -2.0), (-2.0, 2.0), (-2.0, 2.0)]
    assert [r and r.total for r in group.rewards] == [0.0] * 3
    algorithm = Algorithm(advantage="group_mean")
    [credits] = group_advantages([group], algorithm)
    mean = {"white": -2 / 3, "black": 2 / 3}
    for credit, won in zip(credits, (2.0, -2.0, -2.0), strict=True):
        white, black = won - mean["white"], -won - mean["black"]
        assert credit == pytest.approx((white, white, black, black))
    assert not is_zero_variance(group, algorithm)
    samples = to_samples([group], [credits])
    assert [s.sample_index for s in samples] == [0, 0, 1, 1, 2, 2]
    assert {a for a, is_loss in zip(samples[0].token_advantages, samples[0].loss_mask, strict=True) if is_loss} == {
        credits[0][0]  # type: ignore[index]
    }


async def test_no_seat_is_credited_with_the_pay_of_another_one_turn_by_turn() -> None:
    group = await scored(Paid, ("aaa", "b", "cc", "dddd"), ("a", "bbbbb", "c", "d"))
    [credits] = group_advantages([group], Algorithm(advantage="group_mean", credit="turn"))
    # returns-to-go of each seat, times the weight: white (9, 3) and (3, 1), black (10, 8) and (12, 2)
    assert credits[0] == pytest.approx((3.0, 1.0, -1.0, 3.0))
    assert credits[1] == pytest.approx((-3.0, -1.0, 1.0, -3.0))


async def test_best_of_a_seat_is_imitated_and_the_others_are_left_out() -> None:
    group = await scored(Duel, *GAMES)
    [credits] = group_advantages([group], Algorithm(advantage="accepted"))
    assert credits == [(1.0, 1.0, None, None), (None, None, 1.0, 1.0), (None, None, 1.0, 1.0)]
    samples = to_samples([group], [credits])
    assert [s.sample_index for s in samples] == [0, 1, 2]
    assert samples[0].token_ids == group.group.episodes[0].branches[0].token_ids
    assert samples[1].token_ids == group.group.episodes[1].branches[1].token_ids


async def test_a_seat_that_took_no_turn_takes_no_part() -> None:
    class Short(Duel):
        async def step(self, turn: Turn) -> Observation:
            if turn.content == "stop":
                self.said = [*self.said, "", turn.content, ""]
                return Observation(done=Exit.ANSWERED, answer="x")
            return await super().step(turn)

    group = await scored(Short, ("stop",), *GAMES[:2])
    assert group.group.episodes[0].seats == ("white",)
    [credits] = group_advantages([group], Algorithm(advantage="group_mean"))
    assert [len(c) for c in credits if isinstance(c, tuple)] == [1, 4, 4]
    assert math.fsum(c[2] for c in credits[1:]) == 0.0  # type: ignore[index, misc]


async def test_terms_that_know_no_seats_count_for_each_of_them() -> None:
    class Answered:
        dimension, is_cost = "other", False

        def __call__(self, episode: Episode, correctness: float) -> float:
            return 0.25

    group = await scored(Duel, *GAMES)
    terms = {"play": EnvironmentTerm("reward", weight=1.0), "other": Answered()}
    result = (await Reward(judge=ExactMatch(), terms=terms).score(group.group)).rewards[0]
    assert isinstance(result, RewardResult)
    assert result.branches == (1.25, -0.75)
    assert result.total == 0.25


async def test_many_games_at_once_are_kept_apart() -> None:
    episodes = await episodes_of(Duel, ["a"] * 32, count=8)
    assert [episode.failure for episode in episodes] == [None] * 8
    assert [texts(episode) for episode in episodes] == [[["a", "a"], ["a", "a"]]] * 8


async def test_a_record_has_the_seats(tmp_path: Path) -> None:
    group = await scored(Duel, *GAMES)
    credits = group_advantages([group], Algorithm(advantage="accepted"))
    path = tmp_path / "train-000000.jsonl"
    write_trajectories(
        path, scored=[group], advantages=credits, dropped=[None], step=0, split="train", seed=0, environment="duel"
    )
    records = list(read_trajectories(path))
    assert [record.branches for record in records] == [episode.branches for episode in group.group.episodes]
    assert [record.advantage for record in records] == [[1.0, 1.0, None, None], *[[None, None, 1.0, 1.0]] * 2]
    assert [record.reward_branches for record in records] == [[2.0, -2.0], [-2.0, 2.0], [-2.0, 2.0]]
