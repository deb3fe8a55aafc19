"""A run that imitates: the loop of any other, with demonstrations in the place of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentgrpo.core.types import Episode, EpisodeGroup, Exit, Failure, Segment, Task
from agentgrpo.records.trajectories import read_trajectories
from agentgrpo.rollout.demonstrations.base import Demonstrations, demonstrated
from agentgrpo.run.parts import Parts, StepState
from agentgrpo.run.train import demonstrate, samples_of
from agentgrpo.training.checkpoint import LoadedCheckpoint
from tests import builders
from tests.engines import tiny
from tests.run.tiny_run import TinyRun, recorded, rows

SFT = {"loss": "reinforce", "aggregation": "token_mean", "correction": "none"}
BROKEN = "t7"
"""The task that cannot be demonstrated."""


def shown(task: Task) -> Episode:
    """The question said again, and then the end."""
    asked = tuple(tiny.encode(task.messages[0].content))
    said = builders.sampled(*asked, tiny.EOS)
    return demonstrated(builders.episode(task, builders.given(*asked), said, metrics={"tool_turns": 0.0}))


async def show(tasks: Sequence[Task]) -> list[EpisodeGroup]:
    return [EpisodeGroup(task=task, episodes=(shown(task),)) for task in tasks]


class Imitating(TinyRun):
    def parts(self, checkpoint: LoadedCheckpoint | None = None) -> Parts:
        return replace(super().parts(checkpoint), demonstrations=Demonstrations(tasks=self.tasks(), show=show))


def test_demonstrating_takes_off_what_only_a_sampler_knows() -> None:
    episode = builders.episode(None, builders.given(1, 2), builders.sampled(3, 4))
    assert not episode.is_demonstrated
    [branch] = demonstrated(episode).branches
    assert branch.segments[1] == Segment(role="assistant", token_ids=(3, 4), sampled=True)
    assert (branch.loss_mask, branch.logprobs) == ((0, 0, 1, 1), None)


async def test_it_learns_to_say_what_was_shown(tmp_path: Path) -> None:
    await Imitating(tmp_path, SFT, run={"max_steps": 4}).go()
    first, *_, last = found = rows(tmp_path)
    assert last["loss"] < first["loss"]
    assert first["tokens/trained"] == first["tokens/sampled"]
    false = ("reward/", "policy/logprob_gap", "policy/staleness", "policy/correction", "correctness")
    assert [tag for row in found for tag in row if tag.startswith(false)] == []


async def test_what_was_shown_is_recorded_and_read_again(tmp_path: Path) -> None:
    run = Imitating(tmp_path, SFT, run={"max_steps": 1})
    await run.go()
    records = list(read_trajectories(tmp_path / "trajectories" / "train-000000.jsonl"))
    tasks = {task.id: task for task in run.tasks()}
    assert [r.branches for r in records] == [shown(tasks[r.task]).branches for r in records]
    assert {(r.policy_version, r.reward, r.advantage, r.dropped, r.status) for r in records} == {
        (None, None, 1.0, None, "completed")
    }


async def test_a_run_that_was_killed_goes_on_to_the_byte(tmp_path: Path) -> None:
    whole = Imitating(tmp_path / "whole", SFT, run={"max_steps": 3})
    await whole.go()
    half = whole.back_to(1, tmp_path / "half")
    await half.go()
    assert recorded(half.run_dir) == recorded(whole.run_dir)


async def test_a_demonstration_that_failed_is_not_learned_from(tmp_path: Path) -> None:
    failed = Episode(
        task=builders.task(id=BROKEN),
        sample_index=0,
        branches=(),
        answer=None,
        exit=Exit.ERROR,
        metrics={},
        failure=Failure(kind="timeout", stage="tool", message="no answer"),
    )

    async def show_some(tasks: Sequence[Task]) -> list[EpisodeGroup]:
        return [EpisodeGroup(task=t, episodes=(failed if i == 1 else shown(t),)) for i, t in enumerate(tasks)]

    run = Imitating(tmp_path, SFT)
    parts = run.parts()
    parts = replace(parts, demonstrations=Demonstrations(tasks=run.tasks(), show=show_some))
    rolled = await demonstrate(parts, 0)
    chosen = samples_of(parts, 0, rolled, StepState())
    assert (len(chosen.samples), chosen.tags["groups/infrastructure"]) == (2, 1.0)
    assert {s.advantage for s in chosen.samples} == {1.0}
