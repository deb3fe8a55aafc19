"""Questions of reasoning-gym, and what answers to them are worth."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.environments.published.reasoning_gym import ReasoningGymEnvironments, ReasoningGymTasks
from agentgrpo.tasks.base import SPLITS
from tests import builders
from tests.environments.published.playing_them import RENDERER, attempt

pytest.importorskip("reasoning_gym")

EASY = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
SIZES: dict[str, Any] = {"train_tasks": 20, "dev_tasks": 5, "test_tasks": 10}


@pytest.fixture(scope="module")
def tasks() -> Iterator[ReasoningGymTasks]:
    random.seed(7)
    before = random.getstate()
    yield ReasoningGymTasks(dataset="chain_sum", settings=EASY, **SIZES)
    assert random.getstate() == before


@pytest.fixture
async def environment() -> AsyncIterator[ReasoningGymEnvironments]:
    made = ReasoningGymEnvironments(renderer=RENDERER, dataset="chain_sum", settings=EASY)
    yield made
    await made.close()


def test_no_question_is_in_two_splits(tasks: ReasoningGymTasks) -> None:
    asked = [task.question for split in SPLITS for task in tasks.split(split)]
    assert len(asked) == len({*asked})
    assert len(tasks.split("test")) == 10
    task = tasks.split("train")[0]
    assert task.metadata["kind"] == "chain_sum"
    assert len(task.references) == 1


def test_what_is_shown_is_not_held_out() -> None:
    """One animal's legs, of 185 questions: every second one that is drawn is asked in dev or test."""
    legs = {"min_animals": 1, "max_animals": 1, "min_instances": 1, "max_instances": 5}
    settings = {"leg_counting": legs, "chain_sum": EASY}
    sizes = {"train_tasks": 20, "dev_tasks": 60, "test_tasks": 160}
    tasks = ReasoningGymTasks(dataset=tuple(settings), settings=settings, **sizes)
    held_out = {task.question for split in ("dev", "test") for task in tasks.split(split)}
    worlds = [world.tasks for world in tasks.demonstration_worlds(2, 30)]
    assert [Counter(task.metadata["kind"] for task in shown) for shown in worlds] == [
        {"leg_counting": 15, "chain_sum": 15}
    ] * 2
    assert not held_out & {task.question for shown in worlds for task in shown}
    fewer = ReasoningGymTasks(dataset=tuple(settings), settings=settings, **{**sizes, "test_tasks": 150})
    assert fewer.demonstration_fingerprint != tasks.demonstration_fingerprint


@pytest.mark.slow
def test_the_same_settings_ask_the_same(tasks: ReasoningGymTasks) -> None:
    again = ReasoningGymTasks(dataset="chain_sum", settings=EASY, **SIZES)
    other = ReasoningGymTasks(dataset="chain_sum", settings=EASY, **SIZES, seed=50)
    harder = ReasoningGymTasks(dataset="chain_sum", level=2, **SIZES)
    assert again.fingerprint == tasks.fingerprint
    assert len({one.fingerprint for one in (tasks, other, harder)}) == 3


@pytest.mark.slow
def test_several_data_sets_are_dealt_in_turn() -> None:
    settings = {"chain_sum": EASY}
    tasks = ReasoningGymTasks(dataset=("chain_sum", "leg_counting"), settings=settings, **SIZES)
    assert [task.metadata["kind"] for task in tasks.split("test")] == ["chain_sum", "leg_counting"] * 5


@pytest.mark.slow
def test_questions_that_are_all_held_out() -> None:
    settings = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    with pytest.raises(DataError, match=r"task\.dev_tasks=1: all are asked in test or dev too; ask fewer there"):
        ReasoningGymTasks(dataset="chain_sum", settings=settings, train_tasks=2, dev_tasks=1, test_tasks=5000)


async def test_an_answer_is_what_stands_in_the_tags_or_all_of_it(
    tasks: ReasoningGymTasks, environment: ReasoningGymEnvironments
) -> None:
    """The data set's own score: the whole of it for the number, a part for a text that has it in it."""
    task = tasks.split("train")[0]
    [right] = task.references
    before = random.getstate()
    said = {
        f"Let me see. <answer>0</answer> No: <answer> {right} </answer>": (1.0, 1.0),
        right: (1.0, 0.0),
        f"{right}, I think": (len(right) / len(f"{right} I think"), 0.0),
        "<answer></answer>": (0.0, 1.0),
    }
    for text, (score, tagged) in said.items():
        episode = await attempt(environment, task, [text])
        assert episode.metrics["score"] == episode.metrics["reward"] == score
        assert (episode.metrics["tagged"], episode.metrics["solved"]) == (tagged, float(score == 1.0))
        assert episode.metrics["unscored"] == 0.0
    assert random.getstate() == before


async def test_what_the_policy_is_asked(tasks: ReasoningGymTasks, environment: ReasoningGymEnvironments) -> None:
    task = tasks.split("train")[0]
    messages = environment.opening(task)
    assert [message.role for message in messages] == ["system", "user"]
    assert messages[1].content == task.question
    assert "<answer>answer here</answer>" in messages[0].content


def test_settings_that_there_are_not() -> None:
    for dataset, settings, message in (
        (
            "chain_summ",
            {},
            r"environment\.dataset=chain_summ: unknown data set; .* lists all. Did you mean 'chain_sum'",
        ),
        ("chain_sum", {"min_term": 2}, r"settings\.min_term; chain_sum takes min_terms, .* Did you mean 'min_terms'"),
        ("chain_sum", {"seed": 2}, r"environment\.settings\.seed: choose task\.seed"),
        (("chain_sum", "gcd"), {"min_terms": 2}, r"environment\.settings\.min_terms=2; of several data sets"),
    ):
        with pytest.raises(ConfigError, match=message):
            ReasoningGymTasks(dataset=dataset, settings=settings, **SIZES)


def test_tasks_of_others(environment: ReasoningGymEnvironments) -> None:
    with pytest.raises(ConfigError, match=r"is no entry of environment\.dataset=chain_sum; choose task=reasoning_gym"):
        environment.rehearse(builders.task(), max_context=2048)
