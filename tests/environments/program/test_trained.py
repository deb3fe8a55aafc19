"""Which branches are trained: the others are in the records with all that was sampled, and have no gradient."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Branch, EpisodeGroup, RewardResult, ScoredGroup
from agentgrpo.grpo.kl import less_kl
from agentgrpo.grpo.samples import to_samples
from agentgrpo.records.trajectories import read_trajectories, write_trajectories
from tests.environments.program.played import END, Client, SpellingEngine, environments, play, spelled, user
from tests.environments.program.training import trained

TITLE = {"role": "system", "content": "Write a title."}


async def agent(task: Any, base_url: str) -> float:
    """A conversation, a side call with a prompt and a model name of its own, and the conversation's end."""
    client, messages = Client(base_url), [user(task["question"])]
    messages += [await client.say(messages), user("b")]
    await client.say([TITLE, user("a")], model="small")
    await client.say(messages)
    return 1.0


def engine() -> SpellingEngine:
    return SpellingEngine([f"one{END}", f"title{END}", f"two{END}"])


def masks(branch: Branch) -> list[tuple[str, bool]]:
    return [(s.text, s.is_trained) for s in branch.segments if s.sampled]


ONE, SIDE, TWO = f"one{END}", f"title{END}", f"two{END}"


@pytest.mark.parametrize(
    ("options", "main", "side"),
    [
        ({}, True, True),
        ({"train": "last"}, True, False),
        ({"train": "matching", "train_system": "(?i)TITLE"}, False, True),
        ({"train": "matching", "train_model": "^small$"}, False, True),
        ({"train": "matching", "train_model": "any", "train_system": "^$"}, True, False),
        ({"train": "matching", "train_system": "nobody's"}, False, False),
    ],
)
async def test_branches_are_chosen_and_the_others_masked(options: dict[str, Any], main: bool, side: bool) -> None:
    sampler = engine()
    episode = await play(agent, sampler, **options)
    first, second = episode.branches
    assert masks(first) == [(ONE, main), (TWO, main)]
    assert masks(second) == [(SIDE, side)]
    assert [s.token_ids for s in episode.turns] == [sampler.answered[i] for i in (0, 2, 1)]
    assert all(s.logprobs is not None for s in episode.turns)
    assert (episode.metrics["branches"], episode.metrics["trained_branches"]) == (2.0, float(main + side))
    assert [sum(b.loss_mask) for b in (first, second)] == [main * 8, side * 6]


async def test_a_side_call_that_is_cut_short_does_not_cut_the_episode_short() -> None:
    for which, is_truncated in (("last", False), ("all", True)):
        episode = await play(agent, SpellingEngine([ONE, "x" * 300, TWO]), train=which)
        assert episode.is_truncated is is_truncated


async def test_the_last_branch_is_the_one_answered_last() -> None:
    async def ends_aside(task: Any, base_url: str) -> float:
        await Client(base_url).say([user("a")])
        await Client(base_url).say([TITLE, user("a")])
        return 1.0

    episode = await play(ends_aside, engine(), train="last")
    assert [masks(branch) for branch in episode.branches] == [[(ONE, False)], [(SIDE, True)]]


async def test_a_conversation_that_changes_its_model_is_trained_where_the_name_matches() -> None:
    async def changes(task: Any, base_url: str) -> float:
        client, messages = Client(base_url), [user("a")]
        for model in ("small", "large", "large"):
            messages += [await client.say(messages, model=model), user("b")]
        return 1.0

    episode = await play(changes, engine(), train="matching", train_model="large")
    first, second = episode.branches
    assert masks(first) == [(ONE, False)]
    assert masks(second) == [(SIDE, True), (TWO, True)]
    assert second.segments[1].token_ids == spelled(ONE)
    assert sum(second.loss_mask) == 6 + 4


async def test_records_and_samples_keep_the_choice(tmp_path: Path) -> None:
    episode = await play(agent, engine(), train="last")
    reward = RewardResult(total=1.0, terms={}, dimensions={}, correctness=0.0)
    scored = ScoredGroup(group=EpisodeGroup(task=episode.task, episodes=(episode,)), rewards=(reward,))
    write_trajectories(tmp_path / "t.jsonl", scored=[scored], advantages=[[1.0]], dropped=[None], step=0, seed=0)
    [record] = read_trajectories(tmp_path / "t.jsonl")
    told = [replace(b, segments=tuple(replace(s, acts="", end="") for s in b.segments)) for b in episode.branches]
    assert list(record.branches) == told, "what a turn did is in the record's tools"
    assert [m.get("masked") for m in record.agent["messages"] if m["sampled"]] == [None, None, True]
    assert [sum(sample.loss_mask) for sample in to_samples([scored], [[1.0]])] == [8, 0]
    [paid] = less_kl([scored], [[0.5] * 8, []], coef=1.0)
    assert paid.rewards[0] is not None
    assert paid.rewards[0].turns == (-2.0, -2.0, 1.0)  # the reward came with the last turn


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": "some"}, r"environment.train=some: all, last or matching is allowed"),
        ({"train": "matching"}, r"environment.train_system and train_model"),
        ({"train_model": "x"}, r"with environment.train=matching only"),
        ({"train": "matching", "train_system": "("}, r"environment.train_system=\(: .* a regular expression is needed"),
    ],
)
def test_a_choice_that_is_none_is_said_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        environments(agent, **options)


@pytest.mark.slow
def test_a_run_trains_what_matches_alone(desk: Path) -> None:
    here = "environment.function=tests.environments.program.test_trained:agent"
    given = ["reward=environment", "environment.train=matching", "environment.train_model=small"]
    for step in map(json.loads, (trained(here, *given, run="run") / "metrics.jsonl").read_text().splitlines()):
        assert (step["program/branches"], step["program/trained_branches"]) == (2.0, 1.0)
        assert step["policy/logprob_gap_max"] <= 1e-4
        assert 0 < step["tokens/trainable_ratio"] < step["tokens/sampled"] / step["tokens/total"]
