"""RecordedRuns episodes as demonstrations: which ones, and that they are what was recorded."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.config.settings import RolloutSettings
from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import Branch, Episode, RewardResult, ScoredGroup, Segment, Task
from agentgrpo.records.seals import seal
from agentgrpo.records.trajectories import write_trajectories
from agentgrpo.rollout.demonstrations.base import demonstrated
from agentgrpo.rollout.demonstrations.recorded import RecordedRuns
from tests import builders
from tests.renderers import families
from tests.rollout.demonstrations.test_chat import policy

RENDERER = families.renderer("chatml")
REWARDS = {"a": (0.1, 0.9, 0.9), "b": (0.2, None, 0.3)}


def episode(task: Task, index: int) -> Episode:
    asked = RENDERER.open(task.messages)
    said = RENDERER.encode_action(f"{task.id} {index}<|im_end|>")
    segments = (
        Segment(role="user", token_ids=asked, sampled=False, text=RENDERER.decode(asked)),
        Segment(
            role="assistant",
            token_ids=said,
            sampled=True,
            logprobs=(-0.5,) * len(said),
            policy_version=0,
            text=RENDERER.decode(said),
        ),
    )
    made = builders.episode(task, sample_index=index, metrics={"tool_turns": 0.0})
    return replace(made, branches=(Branch(segments=segments),))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """One step of training and an evaluation."""
    (tmp_path / "trajectories").mkdir()
    groups = []
    for id, rewards in REWARDS.items():
        task = builders.task(f"Who is {id}?", "Castin", id=id, kind="who")
        results = [
            None if r is None else RewardResult(total=r, terms={}, dimensions={}, correctness=r) for r in rewards
        ]
        episodes = [episode(task, i) for i in range(len(rewards))]
        groups.append(ScoredGroup(group=builders.group(*episodes), rewards=tuple(results)))
    for name, split, some in (("train-000000", "train", groups), ("eval-end-sampled", "test", groups[:1])):
        path = tmp_path / "trajectories" / f"{name}.jsonl"
        nothing = [[None] * len(g.rewards) for g in some]
        write_trajectories(
            path, scored=some, advantages=nothing, dropped=[None] * len(some), step=0, seed=0, split=split
        )
        seal(tmp_path, path)
    return tmp_path


def names(run: Path, **chosen: Any) -> list[str]:
    """Of the episodes that are chosen."""
    shown = RecordedRuns(runs=(str(run),), **chosen).by(policy(RENDERER, run), RolloutSettings())
    return [task.id.rpartition(":")[2] for task in shown.tasks]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, ["a/0", "a/1", "a/2", "b/0", "b/2"]),
        ({"min_reward": 0.3}, ["a/1", "a/2", "b/2"]),
        ({"best": True}, ["a/1", "b/2"]),
        ({"best": True, "min_reward": 0.5}, ["a/1"]),
        ({"files": "*"}, ["a/0", "a/1", "a/2", "b/0", "b/2", "a/0", "a/1", "a/2"]),
        ({"files": "eval-end-sampled", "best": True}, ["a/1"]),
    ],
)
def test_they_are_chosen_by_reward(run: Path, chosen: dict[str, Any], expected: list[str]) -> None:
    assert names(run, **chosen) == expected


def test_their_tokens_are_those_that_were_recorded(run: Path) -> None:
    shown = RecordedRuns(runs=(str(run),), best=True).by(policy(RENDERER, run), RolloutSettings())
    groups = asyncio.run(shown.show(shown.tasks))
    task = builders.task("Who is a?", "Castin", id="a")
    assert groups[0].episodes[0].branches == demonstrated(episode(task, 1)).branches
    assert all(e.is_demonstrated and e.failure is None for g in groups for e in g.episodes)
    assert groups[0].task.metadata == {"kind": "who"}


def test_another_tokenizer_is_refused(run: Path) -> None:
    source = RecordedRuns(runs=(str(run),))
    with pytest.raises(ConfigError, match=r"train-000000.jsonl, episode a/0: its token ids say something else"):
        source.by(policy(families.renderer("llama3"), run), RolloutSettings())


def test_what_does_not_fit_is_left_out(run: Path) -> None:
    with pytest.raises(DataError, match="5 of 5 recorded episodes are longer than 8 tokens"):
        RecordedRuns(runs=(str(run),)).by(policy(RENDERER, run, room=8), RolloutSettings())


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({"min_reward": 1.0}, r"none of 5 episodes is left with min_reward=1\.0, best=false"),
        ({"files": "eval-start-*"}, r"has no such trajectories, but train-000000, eval-end-sampled"),
        ({"runs": ("none",)}, "none does not exist; give the directory of a run"),
    ],
)
def test_runs_without_them_are_refused(run: Path, chosen: dict[str, Any], why: str) -> None:
    with pytest.raises((ConfigError, DataError), match=why):
        RecordedRuns(**{"runs": (str(run),), **chosen})


def test_nothing_is_learned_from_a_damaged_file(run: Path) -> None:
    path = run / "trajectories" / "train-000000.jsonl"
    path.write_bytes(path.read_bytes().replace(b"0.9", b"9.9"))
    with pytest.raises(DataError, match="nothing is learned from a damaged run"):
        RecordedRuns(runs=(str(run),))
