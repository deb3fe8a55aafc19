"""Credit by turn and the KL term in the reward, from a step's groups to samples, records and metrics."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.types import Episode, RewardResult, ScoredGroup
from agentgrpo.records.trajectories import read_trajectories
from agentgrpo.run.parts import StepState, from_json, kept_for_replay, to_json
from agentgrpo.run.rollouts import Rollout
from agentgrpo.run.train import StepSamples, roll_out, samples_of
from tests import builders
from tests.builders import given, sampled
from tests.engines.tiny import saved_tokenizer
from tests.grpo.tiny import plain_logprobs
from tests.run.tiny_run import TinyRun, recorded, rows

BY_TURN = {"credit": "turn", "advantage": "leave_one_out"}
IN_REWARD = {"advantage": "leave_one_out", "kl_coef": 0.5, "kl_in": "reward", "kl": "k1"}


def group_of(id: str, *turns: tuple[float, float]) -> ScoredGroup:
    """Episodes of two turns, of two tokens and of one."""
    task = builders.task(id=id)
    episodes = [
        builders.episode(
            task,
            given(1, 2),
            sampled(10 + i, 20, logprobs=[-0.5, -1.25]),
            given(7),
            sampled(30, logprobs=[-2.0 - i]),
            sample_index=i,
            metrics={"tool_turns": 0.0},
        )
        for i in range(len(turns))
    ]
    rewards = [RewardResult(total=sum(t), terms={}, dimensions={}, correctness=0.0, turns=t) for t in turns]
    return ScoredGroup(group=builders.group(*episodes), rewards=tuple(rewards))


TIMED = group_of("timed", (-0.5, 1.0), (0.0, 0.5))
"""Equal totals."""
SAME = group_of("same", (0.25, 0.5), (0.25, 0.5))
TOLD = group_of("told", (0.0, 1.0), (0.0, 0.0))


def learnt(run: TinyRun, *groups: ScoredGroup, state: StepState | None = None) -> StepSamples:
    return samples_of(run.parts(), 0, Rollout(scored=groups, tags={}, seconds={}), state or StepState())


def test_a_group_of_equal_totals_is_kept_where_its_turns_differ(tmp_path: Path) -> None:
    chosen = learnt(TinyRun(tmp_path, {**BY_TURN, "drop_zero_variance": True}), TIMED, SAME)
    assert [(s.group_id, s.advantage) for s in chosen.samples] == [
        ("timed", (0.0, 0.0, 0.0, 0.0, 0.0, 0.5)),
        ("timed", (0.0, 0.0, 0.0, 0.0, 0.0, -0.5)),
    ]
    assert (chosen.tags["groups/degenerate"], chosen.tags["advantages/std"]) == (1.0, 0.125**0.5)
    records = read_trajectories(tmp_path / "trajectories" / "train-000000.jsonl")
    assert [(r.task, r.dropped, r.advantage) for r in records] == [
        ("timed", None, [0.0, 0.5]),
        ("timed", None, [0.0, -0.5]),
        ("same", "degenerate", [0.0, 0.0]),
        ("same", "degenerate", [0.0, 0.0]),
    ]
    by_total = {"advantage": "leave_one_out", "drop_zero_variance": True}
    assert learnt(TinyRun(tmp_path, by_total), TIMED, SAME).samples == []


def test_a_zero_variance_group_counts_in_denominators_unless_dropped_or_replaced(tmp_path: Path) -> None:
    """Half of the groups teach: half the loss."""

    def trained(algorithm: dict[str, object], **rollout: object) -> tuple[float, float, list[str | None]]:
        run = TinyRun(tmp_path, {"aggregation": "token_mean", "correction": "none", **algorithm}, rollout=rollout)
        parts = run.parts()
        chosen = samples_of(parts, 0, Rollout(scored=[TOLD, SAME], tags={}, seconds={}), StepState())
        assert chosen.tags["groups/degenerate"] == 1.0
        records = read_trajectories(tmp_path / "trajectories" / "train-000000.jsonl")
        update = parts.trainer.update(chosen.samples, step=0)
        return update.gradient_norm, update.tokens_trained, [r.dropped for r in records][::2]

    norm, tokens, dropped = trained({})
    assert dropped == [None, None]
    for less, rollout in (({"drop_zero_variance": True}, {}), ({"replay_groups": 1}, {}), ({}, {"refill_rounds": 1})):
        of_one, as_many, dropped = trained(less, **rollout)
        assert of_one == pytest.approx(2 * norm)
        assert as_many == tokens  # without credit nothing is computed
        assert dropped == [None, "degenerate"]


def test_kl_anchors_the_tokens_of_every_group(tmp_path: Path) -> None:
    anchored = {"kl_coef": 0.5, "kl_in": "loss"}
    for algorithm, share in (({}, 2), ({"drop_zero_variance": True}, 1)):
        parts = TinyRun(tmp_path, {**anchored, **algorithm}).parts()
        chosen = samples_of(parts, 0, Rollout(scored=[TOLD, SAME], tags={}, seconds={}), StepState())
        assert parts.trainer.update(chosen.samples, step=0).tokens_trained == 6 * share


def test_a_group_kept_for_replay_keeps_its_turns(tmp_path: Path) -> None:
    [kept] = kept_for_replay((), [TIMED], 1)
    assert from_json(json.loads(json.dumps(to_json(kept)))) == kept
    chosen = learnt(TinyRun(tmp_path, {**BY_TURN, "replay_groups": 1}), SAME, state=StepState(replay=(kept,)))
    assert [s.advantage for s in chosen.samples] == [(0.0,) * 5 + (0.5,), (0.0,) * 5 + (-0.5,)]


@pytest.mark.parametrize("credit", ["episode", "turn"])
def test_turns_pay_for_their_distance_to_the_reference(tmp_path: Path, credit: str) -> None:
    run = TinyRun(tmp_path, {**IN_REWARD, "credit": credit, "replay_groups": 1})
    chosen = learnt(run, SAME)
    # equal rewards: nothing but KL tells them apart
    reference = plain_logprobs(run.reference().model, chosen.samples, num_tokens=len(saved_tokenizer()))
    kl = [
        [x - y for x, y in zip(at_sampling, theirs.tolist(), strict=True)]
        for at_sampling, theirs in zip(([-0.5, -1.25, -2.0], [-0.5, -1.25, -3.0]), reference, strict=True)
    ]
    returns = [[0.75 - 0.5 * sum(d), 0.5 - 0.5 * d[2]] for d in kl]
    first = returns[0][0] - returns[1][0]
    last = returns[0][1] - returns[1][1] if credit == "turn" else first
    for sample, sign in zip(chosen.samples, (1, -1), strict=True):
        expected = [sign * x for x in (0, 0, first, first, 0, last)]
        loss = [a * m for a, m in zip(sample.token_advantages, sample.loss_mask, strict=True)]
        assert loss == pytest.approx(expected, abs=1e-5)
    assert chosen.tags["policy/kl"] == pytest.approx(sum(map(sum, kl)) / 6, abs=1e-5)
    assert chosen.tags["policy/kl_reward"] == pytest.approx(0.5 * sum(map(sum, kl)) / 2, abs=1e-5)
    # the record and the metrics say what was judged, replay what was paid
    assert chosen.tags["reward/mean"] == 0.75
    assert [r.reward for r in read_trajectories(tmp_path / "trajectories" / "train-000000.jsonl")] == [0.75, 0.75]
    [kept] = chosen.state.replay
    assert [r and r.total for r in kept.rewards] == pytest.approx([r[0] for r in returns], abs=1e-5)


def test_without_it_nothing_is_scored_or_said(tmp_path: Path) -> None:
    chosen = learnt(TinyRun(tmp_path, {**IN_REWARD, "kl_in": "loss"}), TIMED)
    assert not {tag for tag in chosen.tags if "kl" in tag}


async def test_tasks_are_replaced_by_what_their_turns_teach(tmp_path: Path) -> None:
    """One-turn episodes that all got the same teach nothing by turn either; their places are filled."""

    def grade(episode: Episode) -> float:
        return float(episode.sample_index == 0 and episode.task.id in ("t1", "t2", "t6"))

    found = []
    for algorithm in (BY_TURN, {"advantage": "leave_one_out"}):
        run = TinyRun(tmp_path, algorithm, {"refill_rounds": 9}, grade=grade)
        found.append([g.group.task.id for g in (await roll_out(run.parts(), 0)).scored])
    assert found[0] == found[1]
    assert {"t1", "t2", "t6"} <= set(found[0])


@pytest.mark.parametrize("algorithm", [BY_TURN, {**IN_REWARD, **BY_TURN}])
@pytest.mark.slow
async def test_a_run_that_is_resumed_is_the_same_run(tmp_path: Path, algorithm: dict[str, Any]) -> None:
    whole = TinyRun(tmp_path / "whole", algorithm)
    await whole.go()
    assert [row["optimizer_steps"] for row in rows(whole.run_dir)] == [1.0] * 4
    killed = whole.back_to(2, tmp_path / "killed")
    await killed.go()
    assert recorded(killed.run_dir) == recorded(whole.run_dir)
    if "kl_in" in algorithm:
        paid = [row["policy/kl_reward"] for row in rows(whole.run_dir)]
        assert abs(paid[0]) < 1e-5  # the policy is still the reference
        assert all(abs(p) > 1e-5 for p in paid[1:])
    shutil.rmtree(tmp_path / "killed")
    other = replace(whole, run_dir=tmp_path / "other", algorithm={**algorithm, "credit": "episode"})
    await other.go()  # of one turn each: the turn's credit is the episode's
    assert rows(other.run_dir) == rows(whole.run_dir)
