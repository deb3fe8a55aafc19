"""Environments of a stranger's: a class whose methods are tools, one that answers turns, one with a workspace."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from agentgrpo.config.build import admit_user_code, build_node
from agentgrpo.core.errors import BadValue, ConfigError, EnvironmentFailure
from agentgrpo.core.types import Episode, Exit, Message, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.base import Observation, Turn
from agentgrpo.environments.own import OwnEnvironments, own_environments, pays, row_for
from agentgrpo.environments.tools.environment import ToolEnvironment
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.rewards.base import TermScore
from agentgrpo.rewards.own import EnvironmentTerm, FunctionTerm
from agentgrpo.rollout.groups import run_episode
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.tasks.jsonl import jsonl
from agentgrpo.tools.workspace import Workspaces
from tests.environments.scripted import ScriptedEngine, tokenizer

TASK = Task(
    id="t",
    messages=(Message(role="user", content="Buy it"),),
    references=("paid",),
    metadata={"goal": "apples", "files": {"list.txt": "two apples"}},
)
ADD = 'Action: add\nAction Input: {"item": "apple", "count": 2}\nObservation:'
DONE = "Final Answer: paid<|im_end|>"
MADE: list[object] = []


class Shop:
    """As TRL's environment_factory takes it."""

    def __init__(self, discount: float = 0.0) -> None:
        self.discount = discount
        self.basket: list[str] = []
        MADE.append(self)

    def reset(self, goal: str, **columns: Any) -> str:
        self.columns = columns
        return f"Goal: {goal}"

    def add(self, item: str, count: int = 1) -> str:
        """Puts something into the basket.

        Args:
            item: what to buy
            count: how many
        """
        if item == "stone":
            raise ValueError("no stones")
        self.basket += [item] * count
        return f"{len(self.basket)} in it"

    def get_reward(self) -> float:
        return len(self.basket) + self.discount


class Counter:
    """Methods of every kind."""

    total = 0

    @classmethod
    def limit(cls, of: Literal["day", "year"]) -> int:
        """How much may be counted."""
        return 10 if of == "day" else 100

    @staticmethod
    def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    @staticmethod
    def helper(number):  # type: ignore[no-untyped-def]
        return number

    def add(self, number: int) -> int:
        """Adds it."""
        self.total += number
        return self.total


class Stairs:
    """Answers turns by itself."""

    quality = "height"
    costs = ("falls",)

    async def reset(self, task: Task) -> Observation:
        self.height = 0
        return Observation(messages=[Message(role="user", content="Climb.")])

    async def step(self, turn: Turn) -> Observation | str:
        if turn.index < 2:
            self.height += 1
            return "Higher!"
        return Observation(done=Exit.ANSWERED, answer=turn.text, reward=0.5, metrics={"falls": 1.0})

    async def score(self, episode: Episode) -> Mapping[str, Any]:
        return {"height": float(self.height), "reward": 1.0, "pace": [1.0, 2.0, 3.0]}


class Counting(ToolEnvironment):
    """Scores what lies in the workspace, which still stands."""

    async def score(self, episode: Episode) -> dict[str, float]:
        return {"words": float(len((self.workspace.path / "list.txt").read_text().split()))}


class Forgetful:
    """Its first object fails in its second turn; each counts what it has seen."""

    def __init__(self) -> None:
        self.seen = 0
        self.is_first = not MADE
        MADE.append(self)

    async def reset(self, task: Task) -> str:
        return "Go."

    async def step(self, turn: Turn) -> Observation | str:
        self.seen += 1
        if self.is_first and self.seen == 2:
            raise OSError("the disk is gone")
        if self.seen < 3:
            return "Go on."
        return Observation(done=Exit.ANSWERED, answer="x", metrics={"seen": self.seen})

    async def close(self) -> None:
        self.is_closed = True


class Echo:
    """As in TRL's own examples: its worth is an attribute, for a reward function to look at."""

    def __init__(self) -> None:
        self.reward: float | None = None

    def reset(self, **columns: Any) -> None:
        self.reward = 0.0

    def step(self, action: str) -> str:
        """Says it again.

        Args:
            action: what to say

        Returns:
            The same.
        """
        self.reward = np.float32(len(action))  # type: ignore[assignment]
        return action


def grade(episode: Episode, correctness: float) -> float:
    """As a class's __call__, which a plain function is not."""
    return correctness


class Shapeless:
    """Has nothing that a policy could do."""


def runner(kind: type, *turns: str, **given: Any) -> PolicyRunner:
    MADE.clear()
    renderer = ReactRenderer(tokenizer=tokenizer(), describe_tools=True)
    environment = own_environments(kind)(
        renderer=renderer, tools={}, workspaces=Workspaces(), max_context=None, **given
    )
    return PolicyRunner(environment=environment, engine=ScriptedEngine(turns, speaks=renderer), renderer=renderer)


async def episode_of(kind: type, *turns: str, retries: int = 0, **given: Any) -> Episode:
    return await run_episode(
        runner(kind, *turns, **given),
        TASK,
        sample_index=0,
        stream="test",
        sampling=SamplingParams(max_tokens=64),
        retries=retries,
    )


async def test_methods_are_tools_and_the_reward_is_theirs() -> None:
    episode = await episode_of(Shop, ADD, ADD, DONE, discount=0.25)
    assert (episode.exit, episode.answer, episode.failure) == (Exit.ANSWERED, "paid", None)
    assert [(r.name, r.arguments, r.outcome.value) for r in episode.tool_records] == [
        ("add", {"item": "apple", "count": 2}, "success")
    ] * 2
    assert episode.outcome == {"reward": 4.25}
    assert (episode.metrics["reward"], episode.metrics["turns"], episode.metrics["calls/add"]) == (4.25, 3.0, 2.0)
    opening = episode.branches[0].segments[0].text
    assert "Buy it\nGoal: apples" in opening
    assert "how many" in opening  # the docstring of the method
    assert "4 in it" in episode.branches[0].segments[4].text


async def test_class_methods_and_typed_static_methods_are_tools_too() -> None:
    calls = [
        'Action: limit\nAction Input: {"of": "day"}\nObservation:',
        'Action: double\nAction Input: {"number": 4}\nObservation:',
        'Action: add\nAction Input: {"number": 3}\nObservation:',
    ]
    episode = await episode_of(Counter, *calls, DONE)
    assert [(r.name, r.outcome.value) for r in episode.tool_records] == [
        (name, "success") for name in ("limit", "double", "add")
    ]
    text = "".join(segment.text for segment in episode.branches[0].segments)
    assert all(f"Observation: {said}" in text for said in (10, 8, 3))
    assert "helper" not in text


async def test_a_task_that_opens_with_a_system_message_keeps_its_own() -> None:
    own = replace(TASK, messages=(Message(role="system", content="Mine."), *TASK.messages))
    for of, said in ((own, ["Mine."]), (TASK, ["Ours."])):
        shop = runner(Shop, DONE, system_prompt="Ours.")
        episode = await run_episode(shop, of, sample_index=0, stream="test", sampling=SamplingParams(max_tokens=64))
        opening = episode.branches[0].segments[0].text
        assert [text for text in ("Mine.", "Ours.") if text in opening] == said


async def test_reset_is_given_the_columns_that_it_takes() -> None:
    await episode_of(Shop, DONE)
    [made] = MADE
    assert isinstance(made, Shop)
    assert made.columns["prompt"] == [{"role": "user", "content": "Buy it"}]
    assert (made.columns["question"], made.columns["answer"]) == ("Buy it", "paid")
    columns = row_for(made.reset, replace(TASK, data_source="shops"), where="Shop")
    assert {name: columns[name] for name in ("id", "data_source", "answers", "references")} == {
        "id": "t",
        "data_source": "shops",
        "answers": ["paid"],
        "references": ["paid"],
    }
    lacking = Task(id="u", messages=TASK.messages, references=())
    with pytest.raises(ConfigError, match=r"Shop.reset asks for goal, and task u has no such column; it has prompt, "):
        runner(Shop).rehearse(lacking)


PICTURE = {"type": "image", "image": "iVBO"}
TEXT_PARTS = [{"type": "text", "text": "You see "}, {"type": "text", "text": "a door."}]


class Camera:
    """Shows and tells."""

    shown: Any = None
    seen: Any = None

    def reset(self) -> Any:
        return self.shown

    def look(self) -> Any:
        """Looks."""
        return self.seen

    def get_reward(self) -> float:
        return 1.0


LOOK = "Action: look\nAction Input: {}\nObservation:"


@pytest.mark.parametrize(
    ("shown", "seen", "message"),
    [
        (TEXT_PARTS, TEXT_PARTS, None),
        ([{"role": "user", "content": TEXT_PARTS}], "You see a door.", None),
        ([PICTURE, *TEXT_PARTS], "", "what .*:Camera.reset returns has a part of type image; a policy reads text"),
        ([{"role": "user", "content": [PICTURE]}], "", "what .*:Camera.reset returns has a part of type image"),
        (None, [*TEXT_PARTS, PICTURE], "what .*:Camera.look returns has a part of type image; a policy reads text"),
        ({}, "", "Camera.reset returned a dict; a text, messages, an Observation or None is allowed"),
    ],
)
async def test_parts_of_text_are_read_and_images_refused(shown: Any, seen: Any, message: str | None) -> None:
    episode = await episode_of(type("Camera", (Camera,), {"shown": shown, "seen": seen}), LOOK, DONE)
    if message is not None:
        assert episode.failure is not None
        assert re.search(message, episode.failure.message)
        return
    assert [s.text for s in episode.branches[0].segments if "You see a door." in s.text and not s.sampled][1:]
    assert "'type'" not in "".join(s.text for s in episode.branches[0].segments)


@pytest.mark.parametrize(
    ("row", "opening", "columns"),
    [
        (
            {
                "data_source": "shops",
                "prompt": [{"role": "system", "content": "You sell."}, {"role": "user", "content": "Buy 2 apples"}],
                "ability": "shopping",
                "reward_model": {"style": "rule", "ground_truth": "paid"},
                "extra_info": {"split": "test", "index": 3, "stock": 7},
            },
            [("system", "You sell."), ("user", "Buy 2 apples")],
            {"data_source": "shops", "id": "shops-3", "ability": "shopping", "answer": "paid"},
        ),
        (
            {"question": "Buy 2 apples", "answer": "paid", "info": {"stock": 7}, "task": "shop", "split": "test"},
            [("user", "Buy 2 apples")],
            {"info": {"stock": 7}, "task": "shop", "split": "test", "question": "Buy 2 apples", "answers": ["paid"]},
        ),
        (
            {"prompt": "Buy 2 apples", "env_class": "shop", "reward_spec": {"ground_truth": "paid"}, "split": "test"},
            [("user", "Buy 2 apples")],
            {"env_class": "shop", "reward_spec": {"ground_truth": "paid"}, "answer": "paid"},
        ),
        (
            {"instruction": "Buy", "input": "2 apples", "output": "paid", "split": "test"},
            [("user", "Buy\n\n2 apples")],
            {"instruction": "Buy", "input": "2 apples", "output": "paid", "answer": "paid"},
        ),
    ],
    ids=["verl", "verifiers", "SkyRL", "Alpaca"],
)
async def test_rows_of_other_trainers_reach_reset_whole(
    tmp_path: Path, row: Mapping[str, Any], opening: list[tuple[str, str]], columns: Mapping[str, Any]
) -> None:
    (tmp_path / "q.jsonl").write_text(json.dumps(row) + "\n")
    [task] = jsonl(questions=str(tmp_path / "q.jsonl")).split("test")
    assert [(m.role, m.content) for m in task.messages] == opening
    taken = row_for(Basket.reset, task, where="Basket")
    assert {name: taken[name] for name in columns} == columns
    assert all(taken[name] == row[name] for name in row if name not in ("prompt", "split"))


class Basket:
    """Takes every column."""

    def reset(self, **columns: Any) -> None:
        self.columns = columns


async def test_the_attribute_reward_is_a_worth_and_step_and_score_may_be_tools() -> None:
    step = 'Action: step\nAction Input: {"action": "four"}\nObservation:'
    episode = await episode_of(Echo, step, DONE)
    assert [(r.name, r.outcome.value) for r in episode.tool_records] == [("step", "success")]
    assert (episode.outcome, episode.metrics["reward"]) == ({"reward": 4.0}, 4.0)


async def test_an_exception_of_a_method_is_told_to_the_policy() -> None:
    stone = 'Action: add\nAction Input: {"item": "stone"}\nObservation:'
    episode = await episode_of(Shop, stone, DONE)
    assert episode.tool_records[0].outcome.value == "runtime_error"
    assert "error: ValueError: no stones" in episode.branches[0].segments[2].text


async def test_turns_are_answered_paid_and_scored() -> None:
    episode = await episode_of(Stairs, "a", "b", "c")
    assert (episode.exit, episode.answer) == (Exit.ANSWERED, "c")
    assert episode.turn_rewards == (0.0, 0.0, 0.5)
    assert episode.outcome == {"height": 2.0, "reward": 1.0, "pace": (1.0, 2.0, 3.0)}
    assert episode.metrics["reward"] == 1.5  # 0.5 for the turn and 1.0 at the end
    assert episode.metrics_by_turn["reward"] == (0.0, 0.0, 1.5)
    assert (episode.metrics["pace"], episode.metrics_by_turn["pace"]) == (6.0, (1.0, 2.0, 3.0))
    assert (episode.metrics["falls"], episode.metrics["turns"]) == (1.0, 3.0)
    assert [s.text for s in episode.branches[0].segments if not s.sampled][1] == "\nObservation: Higher!\n"
    figures = runner(Stairs).figures
    assert (figures.quality, figures.spending, figures.is_graded) == ("height", "falls", False)


async def test_a_score_is_taken_while_the_workspace_stands() -> None:
    episode = await episode_of(Counting, DONE)
    assert episode.outcome == {"words": 2.0}


async def test_a_retry_has_an_object_of_its_own_and_finds_nothing_of_the_first() -> None:
    episode = await episode_of(Forgetful, "a", "b", "a", "b", "c", retries=1)
    assert episode.failure is None
    assert episode.metrics["seen"] == 3.0  # not 5
    assert [getattr(made, "seen", None) for made in MADE] == [2, 3]
    assert all(getattr(made, "is_closed", False) for made in MADE)


async def test_an_error_of_the_class_is_a_failure_of_the_attempt() -> None:
    episode = await episode_of(Forgetful, "a", "b", "c")
    assert episode.failure is not None
    assert (episode.failure.kind, episode.exit) == ("EnvironmentFailure", Exit.ERROR)
    assert episode.failure.message.endswith("Forgetful.step: OSError: the disk is gone (test_own.py:136 in step)")


async def test_what_step_returns_must_be_something_to_say() -> None:
    class Mute(Stairs):
        async def step(self, turn: Turn) -> Any:
            return 3

    renderer = runner(Mute, "a")
    with pytest.raises(EnvironmentFailure, match=r"Mute.step returned a int; an Observation or a text is allowed"):
        await renderer.run(TASK, sample_index=0, stream="s", sampling=SamplingParams(max_tokens=8))


SAID: Mapping[str, tuple[dict[str, Any], str]] = {
    "done": ({"done": True}, "done has a bool; Exit or NoneType is allowed"),
    "text of done": ({"done": "answered"}, "done has a str"),
    "answer": ({"answer": 5}, "answer has a int; str or NoneType is allowed"),
    "no messages": ({"messages": None}, "messages is a NoneType; a list is allowed"),
    "text": ({"messages": "Go on."}, "messages is a str; a list is allowed"),
    "dict": ({"messages": [{"role": "user", "content": "x"}]}, "messages has a dict; Message or ToolReply is allowed"),
    "number": ({"messages": [Message(role="user", content=5)]}, "a message says a int"),  # type: ignore[arg-type]
    "no metrics": ({"metrics": None}, "NoneType"),
    "no calls": ({"calls": None}, "calls is a NoneType"),
    "shown": ({"shown": [5]}, "shown has a int"),
    "notes": ({"notes": [{"a": np.float32(1)}]}, "notes or calls: a trajectory cannot hold a float32"),
}


@pytest.mark.parametrize("field", SAID)
async def test_an_observation_holds_what_its_fields_say_or_its_attempt_has_failed(field: str) -> None:
    given, message = SAID[field]

    class Odd(Stairs):
        async def step(self, turn: Turn) -> Observation:
            return Observation(**{"done": Exit.ANSWERED, "answer": "x", **given})

    failure = (await episode_of(Odd, "a")).failure
    assert failure is not None
    assert ".Odd.step: " in failure.message
    assert message in failure.message


async def test_what_a_method_returns_and_no_text_can_say_is_told_to_the_policy() -> None:
    class Long(Shop):
        def add(self, item: str, count: int = 1) -> Any:
            """Puts something into the basket.

            Args:
                item: what to buy
                count: how many
            """
            return 10**5000

    episode = await episode_of(Long, ADD, DONE)
    assert episode.failure is None
    assert episode.tool_records[0].outcome.value == "runtime_error"


async def test_turns_that_were_paid_nothing_are_worth_nothing() -> None:
    class Poor(Forgetful):
        async def step(self, turn: Turn) -> Observation:
            return Observation(done=Exit.ANSWERED, answer="x")

    assert EnvironmentTerm("reward", weight=1.0)(await episode_of(Poor, "a"), 0.0) == 0.0


def test_a_class_without_a_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Shapeless has no public methods; allowed is a class whose typed methods"):
        own_environments(Shapeless)


def test_a_step_that_takes_turns_is_async() -> None:
    class Hasty(Echo):
        def step(self, turn: Turn) -> str:  # type: ignore[override]
            return turn.text

    with pytest.raises(ConfigError, match=r"Hasty has a step that takes a turn: make reset and step async def"):
        own_environments(Hasty)


def test_the_constructors_arguments_are_keys_beside_the_limits() -> None:
    name = f"{__name__}:Shop"
    admit_user_code([name])
    given = {"renderer": ReactRenderer(tokenizer=tokenizer()), "tools": {}, "workspaces": Workspaces()}
    made = build_node("environment", {"name": name, "discount": 0.5, "max_turns": 3}, **given)
    assert isinstance(made, OwnEnvironments)
    assert (made.arguments, made.max_turns, made.name) == ({"discount": 0.5}, 3, name)
    with pytest.raises(ConfigError, match=r"unknown key environment.discont; .* Did you mean 'discount'\?"):
        build_node("environment", {"name": name, "discont": 0.5}, **given)


class Duel:
    """Its opponent is a name, as that of environment=textarena may be a function."""

    def __init__(self, opponent: str = "nobody") -> None:
        self.opponent = opponent

    def fight(self) -> str:
        """Fights."""
        return self.opponent


def test_a_key_that_names_a_function_elsewhere_may_be_a_text_of_ones_own() -> None:
    name = f"{__name__}:Duel"
    admit_user_code([name])
    given = {"renderer": ReactRenderer(tokenizer=tokenizer()), "tools": {}, "workspaces": Workspaces()}
    made = build_node("environment", {"name": name, "opponent": "Velmor"}, **given)
    assert made.arguments == {"opponent": "Velmor"}


async def test_a_score_is_a_reward_term_and_so_is_a_function() -> None:
    episode = await episode_of(Stairs, "a", "b", "c")
    assert EnvironmentTerm("pace", weight=0.5)(episode, 0.0) == 3.0
    assert EnvironmentTerm("pace", weight=0.5).per_turn(episode) == [0.5, 1.0, 1.5]
    assert EnvironmentTerm("height", weight=2.0).per_turn(episode) == [0.0, 0.0, 0.0]
    with pytest.raises(
        BadValue, match=r"environment.hight, and the environment .*Stairs has given no number .*'height'\?"
    ):
        EnvironmentTerm("hight", weight=1.0)(episode, 0.0)
    assert await FunctionTerm(lambda e: len(e.turns), weight=-0.5).of_group([episode]) == [TermScore(value=-1.5)]
    assert await FunctionTerm(lambda e: np.float32(0.5)).of_group([episode]) == [TermScore(value=0.5)]
    [refused] = await FunctionTerm(lambda e: "many").of_group([episode])
    assert str(refused).endswith("<lambda> is 'many'; a number is allowed")
    with pytest.raises(ConfigError, match=r"test_own:grade takes \(episode.*; a reward function takes \(episode\);"):
        FunctionTerm(grade)
    term = build_node("term", {"name": "environment.pace", "weight": 2.0})
    assert term(episode, 0.0) == 12.0


class Silent:
    """It says nowhere what an attempt was worth."""

    def look(self, item: str) -> str:
        """Looks at it."""
        return item


class Setting(Silent):
    """It says so in an attribute."""

    def reset(self) -> None:
        self.reward = 1.0


class SettingByName(Silent):
    def reset(self) -> None:
        setattr(self, "reward", 1.0)  # noqa: B010


@dataclass
class Holding(Silent):
    reward: float


def test_what_may_pay_is_known_before_it_is_made() -> None:
    assert [pays(kind) for kind in (Setting, SettingByName, Holding, Shop, Counting)] == [True] * 5
    assert [pays(kind) for kind in (Silent, Counter)] == [False] * 2
