"""A suite in the configuration: what each member would be as a run of its own, and what cannot be meant."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agentgrpo.config.overrides import brought, makes_room
from agentgrpo.config.suite import members_of
from agentgrpo.core.errors import ConfigError

TASK = {"name": "jsonl", "questions": "sums.jsonl"}
TREE: dict[str, Any] = {
    "task": {"name": "suite"},
    "environment": {"name": "search", "max_turns": 5},
    "tools": {},
    "reward": {"name": "weighted", "reward_scale": 2.0, "terms": {}},
    "rollout": {"tasks_per_step": 10, "group_size": 8},
    "run": {"seed": 1, "eval": {"tasks": 4, "prices": {}}},
}


def suite(**members: Any) -> dict[str, Any]:
    return {**TREE, "suite": members}


def test_a_member_has_its_own_groups_whole_and_all_others_of_the_run() -> None:
    tools = {"calculator": {"name": "calculator"}}
    members = members_of(
        suite(
            sums={"task": TASK, "environment": {"name": "tools"}, "tools": tools, "weight": 3, "prices": {"x": 1.0}},
            facts={"task": TASK, "reward_scale": 0.25, "group_size": 4},
        )
    )
    assert members["sums"] == {
        **TREE,
        "suite": {},
        "task": TASK,
        "environment": {"name": "tools"},
        "tools": tools,
        "rollout": {"tasks_per_step": 8, "group_size": 8},
        "run": {"seed": 1, "eval": {"tasks": 4, "prices": {"x": 1.0}}},
    }
    assert members["facts"] == {
        **TREE,
        "suite": {},
        "task": TASK,
        "reward": {"name": "weighted", "reward_scale": 0.5, "terms": {}},
        "rollout": {"tasks_per_step": 3, "group_size": 4},
    }
    assert members_of({**TREE, "task": TASK, "suite": {}}) == {}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (suite(), "task=suite has the tasks of a suite's members, and suite is empty; give it some"),
        (suite(sums={}), "suite.sums has no task; give it one: suite.sums.task.name=..., or the run: task=..."),
        (suite(**{"a:b": {"task": TASK}}), "suite.a:b: a name is letters, digits, _ and -"),
        (suite(sums={"task": TASK, "weight": 0}), "suite: no member has a weight above 0; raise one weight"),
        (
            {**suite(sums={"task": TASK}), "run": {"eval": {"prices": {"web": 1.0}}}},
            "run.eval.prices with a suite; give each member its own: suite.NAME.prices.CALL=PRICE",
        ),
    ],
)
def test_what_cannot_be_meant_is_one_line(config: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}") as e:
        members_of(config)
    assert "\n" not in str(e.value)


OF_RUN = ["task=suite", "reward=shaped", "judge=exact_match"]
"""The run's own, whatever the environments of members bring along."""


@pytest.mark.parametrize(
    ("overrides", "room"),
    [
        (["suite=mine"], ["experiment=none", *OF_RUN]),
        (["++suite.a.weight=2"], ["experiment=none", *OF_RUN]),
        (["+task@suite.a.task=jsonl"], ["experiment=none", *OF_RUN]),
        (["suite=mine", "task.questions=q.jsonl"], ["experiment=none", *OF_RUN[1:]]),
        (["suite=mine", "task=almanac", "reward=calls"], ["experiment=none", "judge=exact_match"]),
        (["suite=mine", "reward@suite.a.reward=calls"], ["experiment=none", *OF_RUN]),
    ],
)
def test_a_suite_makes_room_for_itself(overrides: list[str], room: list[str]) -> None:
    assert makes_room(brought(overrides), overrides) == room


@pytest.mark.parametrize("overrides", [["suite=none"], ["suite=mine", "experiment=x"]])
def test_no_suite_and_an_experiment_of_the_users_choose_nothing(overrides: list[str]) -> None:
    assert brought(overrides) == []
