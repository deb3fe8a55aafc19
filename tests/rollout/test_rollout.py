"""Episodes to groups to scores: capture, retries, concurrency, cancellation, drops, tags."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agentgrpo.core.errors import RetrieverError, TooManyFailures
from agentgrpo.core.types import Episode, EpisodeGroup, Exit, Failure, RewardResult, ScoredGroup, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.search.metrics import SEARCH_FIGURES
from agentgrpo.records.trajectories import read_trajectories, write_trajectories
from agentgrpo.rollout.groups import run_episode, run_groups
from agentgrpo.rollout.metrics import rollout_metrics
from agentgrpo.rollout.scoring import Drop, episode_failures, keep_trainable, refuse_failures, score_groups
from tests.builders import episode, given, group, sampled, task

SAMPLING = SamplingParams()


class Attempts:
    """A Runner whose every attempt is one call of `body(task, sample_index, number of this attempt)`, from 0."""

    note = ""
    figures = SEARCH_FIGURES

    def __init__(self, body: Callable[[Task, int, int], Awaitable[None]]) -> None:
        self.body = body
        self.attempts: list[tuple[str, int, int]] = []
        self.running = 0
        self.most_running = 0

    async def run(
        self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams, attempt: int = 0
    ) -> Episode:
        self.attempts.append((task.id, sample_index, attempt))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.body(task, sample_index, attempt)
        finally:
            self.running -= 1
        return episode(task, answer=f"{stream}/{task.id}/{sample_index}", sample_index=sample_index)


async def down(task: Task, sample_index: int, number: int) -> None:
    raise RetrieverError("vdb answered 500", kind="http_500")


async def test_an_infrastructure_failure_is_data() -> None:
    failed = await run_episode(Attempts(down), task(), sample_index=3, stream="s", sampling=SAMPLING)
    assert failed.failure == Failure(kind="http_500", stage="RetrieverError", message="vdb answered 500")
    assert (failed.exit, failed.answer, failed.branches, failed.sample_index) == (Exit.ERROR, None, (), 3)


async def test_what_an_attempt_does_to_its_task_no_other_sees() -> None:
    of = task(seen=[])

    async def changes(task: Task, sample_index: int, number: int) -> None:
        task.metadata["seen"].append(sample_index)

    [made] = await run_groups(Attempts(changes), [of], group_size=3, stream="s", sampling=SAMPLING)
    assert [e.task.metadata for e in made.episodes] == [{"seen": [i]} for i in range(3)]
    assert of.metadata == made.task.metadata == {"seen": []}


async def test_a_bug_is_a_crash() -> None:
    async def bug(task: Task, sample_index: int, number: int) -> None:
        raise KeyError("typo")

    with pytest.raises(KeyError):
        await run_episode(Attempts(bug), task(), sample_index=0, stream="s", sampling=SAMPLING, retries=3)
    with pytest.raises(KeyError):
        await run_groups(Attempts(bug), [task()], group_size=2, stream="s", sampling=SAMPLING)


async def test_a_fault_that_passes_leaves_no_trace() -> None:
    async def once(task: Task, sample_index: int, number: int) -> None:
        if number == 0:
            raise RetrieverError("blip", kind="transport")

    runner = Attempts(once)
    found = await run_episode(runner, task(), sample_index=0, stream="s", sampling=SAMPLING, retries=1)
    assert found == episode(task(), answer="s/t0/0")
    assert runner.attempts == [("t0", 0, 0), ("t0", 0, 1)]


async def test_the_time_limit_is_an_infrastructure_failure() -> None:
    async def hang(task: Task, sample_index: int, number: int) -> None:
        await asyncio.Event().wait()

    runner = Attempts(hang)
    found = await run_episode(runner, task(), sample_index=0, stream="s", sampling=SAMPLING, timeout_s=0.02)
    assert (found.exit, found.failure) == (
        Exit.TIMEOUT,
        Failure(kind="timeout", stage="episode", message="not done after 0.02 s"),
    )
    assert runner.running == 0


async def test_groups_keep_their_order_and_their_limit() -> None:
    async def uneven(task: Task, sample_index: int, number: int) -> None:
        await asyncio.sleep(0.001 * ((7 * sample_index + len(task.id)) % 5))

    runner = Attempts(uneven)
    tasks = [task(id="a"), task(id="bb")]
    groups = await run_groups(runner, tasks, group_size=3, stream="s", sampling=SAMPLING, max_concurrent_episodes=2)
    assert [[e.answer for e in g.episodes] for g in groups] == [
        ["s/a/0", "s/a/1", "s/a/2"],
        ["s/bb/0", "s/bb/1", "s/bb/2"],
    ]
    assert runner.most_running == 2


async def test_cancelled_groups_leave_nothing_running() -> None:
    async def hang(task: Task, sample_index: int, number: int) -> None:
        await asyncio.Event().wait()

    runner = Attempts(hang)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run_groups(runner, [task()], group_size=4, stream="s", sampling=SAMPLING), 0.02)
    assert runner.running == 0


def reward(total: float, correctness: float = 0.0) -> RewardResult:
    return RewardResult(
        total=total, terms={"correctness": total}, dimensions={"correctness": total}, correctness=correctness
    )


def scored(*totals: float | None, failed: Failure | None = None) -> ScoredGroup:
    made = [
        episode(
            task(),
            given(1, 2, 3),
            sampled(*range(i + 1)),
            metrics={"search_rounds": float(i), "tool_turns": float(i), "web_searches": 1.0},
            sample_index=i,
        )
        for i in range(len(totals))
    ]
    rewards = tuple(None if t is None else reward(t) for t in totals)
    return ScoredGroup(
        group=group(*made),
        rewards=rewards,
        failures=tuple(failed if r is None else None for r in rewards),
    )


class ByIndex:
    """The reward: the number of the sample; nothing for an episode that failed."""

    async def score(self, group: EpisodeGroup) -> ScoredGroup:
        rewards = [None if e.failure else reward(float(e.sample_index)) for e in group.episodes]
        return ScoredGroup(group=group, rewards=tuple(rewards))


async def test_what_is_not_done_in_time_has_failed_is_dropped_and_is_recorded(tmp_path: Path) -> None:
    """One episode of `some` hangs, all of `all` do, none of `none`."""

    async def hang(task: Task, sample_index: int, number: int) -> None:
        if task.id == "all" or (task.id == "some" and sample_index == 1):
            await asyncio.Event().wait()

    groups = await run_groups(
        Attempts(hang),
        [task(id=name) for name in ("some", "all", "none")],
        group_size=2,
        stream="s",
        sampling=SAMPLING,
        episode_timeout_s=0.02,
    )
    scored = await score_groups(ByIndex(), groups)  # type: ignore[arg-type]
    kept, reasons = keep_trainable(scored)
    assert [g.group.task.id for g in kept] == ["none"]
    assert reasons == [Drop.INFRASTRUCTURE, Drop.INFRASTRUCTURE, None]
    path = tmp_path / "train-000000.jsonl"
    write_trajectories(path, scored=scored, advantages=[[None] * 2] * 3, dropped=reasons, step=0, seed=0)
    records = list(read_trajectories(path))
    assert [(r.id, r.status, r.finish_reason, r.group_status, r.dropped, r.reward) for r in records] == [
        ("some/0", "completed", "stop", "failed", "infrastructure", 0.0),
        ("some/1", "failed", "timeout", "failed", "infrastructure", None),
        ("all/0", "failed", "timeout", "failed", "infrastructure", None),
        ("all/1", "failed", "timeout", "failed", "infrastructure", None),
        ("none/0", "completed", "stop", "completed", None, 0.0),
        ("none/1", "completed", "stop", "completed", None, 1.0),
    ]


JUDGE_DOWN = Failure(kind="JudgeError", stage="judge", message="no verdict")


def test_drops_have_reasons() -> None:
    kept, reasons = keep_trainable(
        [scored(0.0, 1.0), scored(1.0, 1.0), scored(0.0, None, failed=JUDGE_DOWN), scored(0.5)]
    )
    assert kept == [scored(0.0, 1.0)]
    assert reasons == [None, Drop.ZERO_VARIANCE, Drop.INFRASTRUCTURE, Drop.ZERO_VARIANCE]


def test_groups_of_weights_too_old_are_stale() -> None:
    def of(version: int) -> ScoredGroup:
        a = episode(task(), given(1), sampled(2, version=version), given(3), sampled(4, version=7))
        b = episode(task(), given(1), sampled(5, version=7), sample_index=1)
        return ScoredGroup(group=group(a, b), rewards=(reward(0.0), reward(1.0)))

    assert keep_trainable([of(5), of(6)], oldest_version=6) == ([of(6)], [Drop.STALE, None])
    assert keep_trainable([of(5), of(6)]) == ([of(5), of(6)], [None, None])


def test_truncated_episodes_are_counted() -> None:
    cut = replace(sampled(3, 4), cut_short=True)
    whole, overflown = episode(), episode(exit=Exit.CONTEXT_OVERFLOW)
    at_the_end, on_the_way = episode(task(), given(1), cut), episode(task(), given(1), cut, given(2), sampled(5))
    after_all = episode(task(), given(1), cut, given(2))
    made = [whole, overflown, at_the_end, on_the_way, after_all]
    assert [e.is_truncated for e in made] == [False, True, True, False, True]
    one = ScoredGroup(group=group(*made), rewards=tuple(reward(float(i)) for i in range(5)))
    assert rollout_metrics([one], [None], lambda episode: 0.0)["episodes/truncated"] == 3.0


def test_too_many_failures_stop_the_run_and_quote_the_first() -> None:
    half = [scored(0.0, None, failed=JUDGE_DOWN)]
    refuse_failures(half, max_error_fraction=0.5)
    with pytest.raises(TooManyFailures, match=r"1 of 2 episodes failed .*\(JudgeError: 1\).*The first one: no verdict"):
        refuse_failures(half, max_error_fraction=0.49)
    assert episode_failures(half) == [JUDGE_DOWN]


def test_calls_have_the_tags_that_trl_users_know() -> None:
    """tools/call_frequency: calls per episode; tools/failure_frequency: failed calls per call."""

    def tags(*counts: tuple[float, float]) -> dict[str, float]:
        made = [episode(metrics={"tool_calls": calls, "failed_calls": failed}) for calls, failed in counts]
        one = ScoredGroup(group=group(*made), rewards=(reward(0.0),) * len(made))
        found = rollout_metrics([one], [None], lambda episode: 0.0)
        return {tag: value for tag, value in found.items() if tag.startswith("tools/")}

    assert tags((3.0, 2.0), (1.0, 0.0)) == {"tools/call_frequency": 2.0, "tools/failure_frequency": 0.5}
    assert tags((0.0, 0.0), (0.0, 0.0)) == {"tools/call_frequency": 0.0, "tools/failure_frequency": 0.0}


def test_programs_have_tags_of_their_own() -> None:
    counts = [
        {"branches": 1.0, "trained_branches": 1.0, "continued_share": 1.0},
        {"branches": 4.0, "trained_branches": 2.0, "continued_share": 0.5},
    ]
    made = [episode(metrics=count) for count in counts]
    one = ScoredGroup(group=group(*made), rewards=(reward(0.0),) * 2)
    found = rollout_metrics([one], [None], lambda episode: 0.0)
    tags = {tag: value for tag, value in found.items() if tag.startswith("program/")}
    assert tags == {"program/branches": 2.5, "program/trained_branches": 1.5, "program/continued_share": 0.75}
    other = ScoredGroup(group=group(episode()), rewards=(reward(0.0),))
    assert not any(tag.startswith("program/") for tag in rollout_metrics([other], [None], lambda episode: 0.0))


def test_tags_by_hand() -> None:
    groups = [scored(0.0, 1.0), scored(1.0, None, failed=JUDGE_DOWN)]
    _, reasons = keep_trainable(groups)
    assert rollout_metrics(groups, reasons, lambda episode: 0.05 * episode.metrics["web_searches"]) == {
        "episodes/total": 4.0,
        "episodes/scored": 3.0,
        "groups/total": 2.0,
        "groups/infrastructure": 1.0,
        "groups/degenerate": 0.0,
        "groups/stale": 0.0,
        "groups/filtered": 1.0,
        "groups/informative": 0.5,
        "failures/JudgeError": 1.0,
        "reward/mean": 2 / 3,
        "reward/std": pytest.approx((2 / 9) ** 0.5, abs=1e-12),
        "correctness": 0.0,
        "episodes/truncated": 0.0,
        "reward/term/correctness": 2 / 3,
        "reward/dimension/correctness": 2 / 3,
        "agent/search_rounds": 0.5,
        "agent/web_searches": 1.0,
        "cost/episode": pytest.approx(0.05, abs=1e-12),
        "cost/step": pytest.approx(0.2, abs=1e-12),
        "agent/tool_turns": 0.5,
        "tool_turns/mean": 0.5,
        "tool_turns/min": 0.0,
        "tool_turns/max": 1.0,
        "response_len/mean": 1.5,
        "response_len/min": 1.0,
        "response_len/max": 2.0,
        "tokens/sampled": 6.0,
        "tokens/total": 18.0,
        "tokens/trainable_ratio": 6 / 18,
    }
