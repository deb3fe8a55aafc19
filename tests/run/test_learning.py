"""What a step's groups become: samples, tags, and what it hands to the next step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.types import Episode, Exit, RewardResult, ScoredGroup, Task
from agentgrpo.run.parts import StepState, from_json, kept_for_replay, to_json, to_replay
from agentgrpo.run.rollouts import Rollout
from agentgrpo.run.train import StepSamples, samples_of
from tests import builders
from tests.builders import given, sampled
from tests.run.tiny_run import TinyRun, rows


def scored(id: str, *totals: float, version: int = 0, cut: int | None = None) -> ScoredGroup:
    """A group of one-turn episodes of three sampled tokens; that of sample `cut` was cut short by the context."""
    task = builders.task(id=id)
    episodes = [
        builders.episode(
            task,
            given(1, 2),
            sampled(10 + i, 20, 30, logprobs=[-0.1, -1 / 3, -i - 0.7], version=version),
            sample_index=i,
            metrics={"tool_turns": 0.0},
            exit=Exit.CONTEXT_OVERFLOW if i == cut else Exit.ANSWERED,
        )
        for i in range(len(totals))
    ]
    rewards = [RewardResult(total=t, terms={"grade": t}, dimensions={"x": t}, correctness=t) for t in totals]
    return ScoredGroup(group=builders.group(*episodes), rewards=tuple(rewards))


def learnt(
    tmp_path: Path,
    groups: list[ScoredGroup],
    state: StepState | None = None,
    *,
    step: int = 0,
    rollout: Mapping[str, Any] | None = None,
    **algorithm: Any,
) -> StepSamples:
    parts = TinyRun(tmp_path, {"advantage": "group_mean", **algorithm}, rollout or {}).parts()
    return samples_of(parts, step, Rollout(scored=groups, tags={}, seconds={}), state or StepState())


def credits(chosen: StepSamples) -> list[tuple[str, int, Any]]:
    return [(s.group_id, s.sample_index, s.advantage) for s in chosen.samples]


def kept(groups: Sequence[ScoredGroup]) -> list[tuple[str, int | None]]:
    """(task, version) of each."""
    return [(g.group.task.id, g.group.episodes[0].branches[0].segments[1].policy_version) for g in groups]


def test_truncated_episodes_count_in_their_group_and_are_not_trained_on(tmp_path: Path) -> None:
    group = scored("a", 0.0, 0.5, 1.0, 0.5, cut=2)
    assert credits(learnt(tmp_path, [group])) == [("a", 0, -0.5), ("a", 1, 0.0), ("a", 2, 0.5), ("a", 3, 0.0)]
    chosen = learnt(tmp_path, [group], mask_truncated=True)
    assert credits(chosen) == [("a", 0, -0.5), ("a", 1, 0.0), ("a", 3, 0.0)]
    assert chosen.tags["episodes/truncated"] == 1.0


def test_groups_of_weights_too_old_are_not_trained_on(tmp_path: Path) -> None:
    groups = [scored("a", 0.0, 1.0, version=4), scored("b", 0.0, 1.0, version=5)]
    chosen = learnt(tmp_path, groups, step=6, max_staleness=1)
    assert {s.group_id for s in chosen.samples} == {"b"}
    assert chosen.tags["groups/stale"] == 1.0
    assert {s.group_id for s in learnt(tmp_path, groups, step=5, max_staleness=1).samples} == {"a", "b"}
    assert {s.group_id for s in learnt(tmp_path, groups, step=5).samples} == {"b"}


def test_kept_groups_fill_up_a_step_the_newest_first(tmp_path: Path) -> None:
    old = kept_for_replay((), [scored(i, 0.0, 1.0) for i in "abcd"], 4)
    groups = [scored("d", 0.0, 1.0, version=3), scored("e", 1.0, 1.0, version=3), scored("f", 0.0, 0.0, version=3)]
    chosen = learnt(tmp_path, groups, StepState(replay=old), step=3, replay_groups=4)
    # d itself is new; c and b are the newest of the others
    assert [(s.group_id, s.policy_version) for s in chosen.samples] == [
        ("d", 3), ("d", 3), ("c", 0), ("c", 0), ("b", 0), ("b", 0),
    ]  # fmt: skip
    assert chosen.tags["groups/replayed"] == 2.0
    assert kept(chosen.state.replay) == [("b", 0), ("c", 0), ("d", 0), ("d", 3)]


def test_a_full_step_replays_nothing(tmp_path: Path) -> None:
    old = kept_for_replay((), [scored("z", 0.0, 1.0)], 4)
    chosen = learnt(tmp_path, [scored(i, 0.0, 1.0) for i in "abc"], StepState(replay=old), replay_groups=4)
    assert {s.group_id for s in chosen.samples} == {"a", "b", "c"}
    assert chosen.tags["groups/replayed"] == 0.0


def test_without_replay_nothing_is_kept_or_counted(tmp_path: Path) -> None:
    chosen = learnt(tmp_path, [scored("a", 0.0, 1.0)])
    assert chosen.state == StepState()
    assert "groups/replayed" not in chosen.tags


def test_no_task_is_replayed_twice() -> None:
    replay = kept_for_replay((), [scored("a", 0.0, 1.0, version=v) for v in (1, 2)] + [scored("b", 0.0, 1.0)], 9)
    assert kept(to_replay(replay, 9, taken={"b"})) == [("a", 2)]
    assert to_replay(replay, 0, taken=()) == to_replay(replay, -1, taken=()) == []


def test_a_kept_group_comes_back_from_json_as_it_was() -> None:
    [group] = kept_for_replay((), [scored("a", 0.1, 1 / 3, cut=1)], 1)
    assert from_json(json.loads(json.dumps(to_json(group)))) == group
    assert group.group.task == Task(id="a", messages=(), references=())
    assert group.group.episodes[1].is_truncated
    assert group.rewards == scored("a", 0.1, 1 / 3).rewards


def test_the_curriculum_learns_of_every_group_that_was_rolled_out(tmp_path: Path) -> None:
    groups = [scored("a", 0.0, 1.0), scored("b", 1.0, 1.0)]
    rollout = {"curriculum": "difficulty", "curriculum_memory": 0.75}
    chosen = learnt(tmp_path, groups, StepState(rates={"a": 0.0, "c": 1.0}), rollout=rollout)
    assert chosen.state.rates == {"a": 0.125, "b": 1.0, "c": 1.0}


async def test_a_run_fills_up_from_earlier_steps(tmp_path: Path) -> None:
    """From step 1 on nothing new teaches anything."""

    def grade(episode: Episode) -> float:
        version = episode.branches[0].segments[1].policy_version
        return float(episode.sample_index == 0 and version == 0)

    await TinyRun(tmp_path, {"replay_groups": 2}, grade=grade).go()
    assert [r["groups/replayed"] for r in rows(tmp_path)] == [0.0, 2.0, 2.0, 2.0]
    assert [r["policy/staleness_max"] for r in rows(tmp_path)] == [0.0, 1.0, 2.0, 3.0]
    assert [r["optimizer_steps"] for r in rows(tmp_path)] == [1.0] * 4
    assert all("policy/correction_mean" in r for r in rows(tmp_path))


@pytest.mark.parametrize("groups", [0, 2])
async def test_where_nothing_teaches_and_nothing_is_kept_no_step_is_taken(tmp_path: Path, groups: int) -> None:
    await TinyRun(tmp_path, {"replay_groups": groups}, run={"max_steps": 1}, grade=lambda e: 1.0).go()
    assert rows(tmp_path)[0]["optimizer_steps"] == 0.0
