"""algorithm=raft: supervised training on the episodes that were accepted, and on nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from agentgrpo.cli.main import configs_dir
from agentgrpo.core.types import EpisodeGroup, ScoredGroup
from agentgrpo.records.trajectories import read_trajectories
from agentgrpo.rollout.demonstrations.base import demonstrated
from agentgrpo.run.parts import StepState
from agentgrpo.run.rollouts import Rollout
from agentgrpo.run.train import roll_out, samples_of
from tests.run.tiny_run import TinyRun, rows


def preset(name: str) -> dict[str, object]:
    """The keys of an algorithm's preset that differ from grpo's."""
    found = yaml.safe_load((configs_dir() / "algorithm" / f"{name}.yaml").read_text())
    return {key: value for key, value in found.items() if key not in ("defaults", "name")}


@pytest.mark.parametrize("least", [None, 0.5])
async def test_its_update_is_that_of_sft_on_what_was_accepted(tmp_path: Path, least: float | None) -> None:
    args = {} if least is None else {"advantage_args": {"least": least}}
    run = TinyRun(tmp_path / "raft", {**preset("raft"), **args})
    parts = run.parts()
    rolled = await roll_out(parts, 0)
    chosen = samples_of(parts, 0, rolled, StepState())
    records = list(read_trajectories(tmp_path / "raft" / "trajectories" / "train-000000.jsonl"))
    taken = {record.id for record in records if record.advantage is not None}
    totals = {record.id: record.reward for record in records}
    if least is None:
        best = {r.task: max(totals[x.id] for x in records if x.task == r.task) for r in records}
        assert taken == {record.id for record in records if totals[record.id] == best[record.task]}
    else:
        assert taken == {id for id, total in totals.items() if total >= least}
    assert 0 < len(taken) < len(records)
    assert len(chosen.samples) == len(taken)

    episodes = [e for g in rolled.scored for e in g.group.episodes if f"{e.task.id}/{e.sample_index}" in taken]
    given = [
        ScoredGroup(group=EpisodeGroup(task=e.task, episodes=(demonstrated(e),)), rewards=(None,)) for e in episodes
    ]
    other = TinyRun(tmp_path / "sft", preset("sft")).parts()
    shown = samples_of(other, 0, Rollout(scored=given, tags={}, seconds={}), StepState())
    ours, theirs = (p.trainer.update(s.samples, step=0) for p, s in ((parts, chosen), (other, shown)))
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-6)
    assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-6)
    assert ours.tokens_trained == theirs.tokens_trained
    assert ours.logprob_gap_max is not None  # the policy has sampled them


async def test_by_grade_right_episodes_are_accepted_whatever_they_have_cost(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, {**preset("raft"), "advantage_args": {"by": "grade"}})
    parts = run.parts()
    rolled = await roll_out(parts, 0)
    chosen = samples_of(parts, 0, rolled, StepState())
    best = {g.group.task.id: max(r.correctness for r in g.rewards if r) for g in rolled.scored}
    expected = [
        (e.task.id, e.sample_index)
        for g in rolled.scored
        for e, r in zip(g.group.episodes, g.rewards, strict=True)
        if r and r.correctness == best[e.task.id] > 0
    ]
    assert [(s.group_id, s.sample_index) for s in chosen.samples] == expected
    assert expected


async def test_a_group_of_equal_rewards_teaches_nothing_unless_it_is_good_enough(tmp_path: Path) -> None:
    for args, trained in (({}, 0), ({"advantage_args": {"least": 0.5}}, 9), ({"advantage_args": {"least": 2.0}}, 0)):
        parts = replace(TinyRun(tmp_path, {**preset("raft"), **args}, grade=lambda episode: 1.0)).parts()
        chosen = samples_of(parts, 0, await roll_out(parts, 0), StepState())
        assert (len(chosen.samples), chosen.tags["groups/degenerate"]) == (trained, 0.0 if trained else 3.0)


async def test_the_reward_rises(tmp_path: Path) -> None:
    await TinyRun(tmp_path, preset("raft"), rollout={"group_size": 8}, run={"max_steps": 6}).go()
    found = [row["reward/mean"] for row in rows(tmp_path)]
    assert sum(found[-2:]) > sum(found[:2])
