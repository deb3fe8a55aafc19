"""The default guards: those that every run must have, and none that an environment cannot set off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentgrpo.cli.main import configs_dir
from agentgrpo.core.errors import GuardHalt
from agentgrpo.core.types import Episode, Exit, RewardResult, ScoredGroup
from agentgrpo.environments.search.metrics import episode_metrics as search_metrics
from agentgrpo.environments.search.state import SearchState
from agentgrpo.environments.tools.state import ToolState
from agentgrpo.environments.tools.state import episode_metrics as tool_metrics
from agentgrpo.rollout.metrics import rollout_metrics, start_tags
from agentgrpo.rollout.scoring import Drop
from agentgrpo.run.guards import LEAST, Guard, Guards
from tests import builders
from tests.run.tiny_run import TinyRun, rows

ANSWERED = {f"exit_{e.value}": float(e is Exit.ANSWERED) for e in Exit}
METRICS = {
    "search": search_metrics(SearchState(question="?"), limit=5, answered=True) | ANSWERED,
    "tools": tool_metrics(ToolState(), tools=["calculator"]) | ANSWERED,
}
"""Of an episode in each environment."""


@cache
def defaults() -> dict[str, Guard]:
    nodes = yaml.safe_load((configs_dir() / "guards" / "default.yaml").read_text(encoding="utf-8"))
    return {name: Guard(**node) for name, node in nodes.items()}


def step_of(environment: str, **metrics: float) -> dict[str, float]:
    """What a step measures before its update, in a healthy run."""
    episode = builders.episode(metrics=METRICS[environment] | {"tool_turns": 2.0} | metrics)
    rewards = [RewardResult(total=t, terms={"t": t}, dimensions={}, correctness=t) for t in (0.0, 1.0)]
    scored = ScoredGroup(group=builders.group(episode, episode), rewards=tuple(rewards), failures=(None, None))
    return rollout_metrics([scored], [None], lambda metrics: 0.0)


def said(tags: dict[str, float], *, steps: int, environment: str = "tools") -> list[str]:
    """Every line of a healthy run whose last `steps` steps measure `tags`."""
    guards = Guards(defaults(), has_checkpoints=True)
    rows = [step_of(environment)] * LEAST + [step_of(environment) | tags] * steps
    return [line for step, row in enumerate(rows) for line in guards.close(step, row).lines]


@pytest.mark.parametrize("environment", METRICS)
def test_every_environment_measures_what_the_default_guards_watch(environment: str) -> None:
    assert said({}, steps=30, environment=environment) == []


@pytest.mark.parametrize(
    "metric, value, steps, name",
    [
        ("tokens/trainable_ratio", 0.61, 1, "masks"),
        ("reward/std", 0.09, 10, "flat_reward"),
        ("policy/kl", 1.01, 3, "kl"),
        ("policy/entropy", 3.01, 10, "noise"),
        ("tool_turns/mean", 0.5, 3, "calls"),
    ],
)
def test_an_unhealthy_run_is_warned_of(metric: str, value: float, steps: int, name: str) -> None:
    assert said({metric: value}, steps=steps - 1) == []
    [line] = said({metric: value}, steps=steps)
    assert line.startswith(f"step {LEAST + steps - 1}: guards.{name}: {metric} is {value:.3g}, ")


@pytest.mark.parametrize("environment", METRICS)
def test_a_policy_that_never_calls_is_no_alarm(environment: str) -> None:
    guards = Guards(defaults(), has_checkpoints=True)
    assert [guards.close(step, step_of(environment, tool_turns=0.0)).lines for step in range(30)] == [[]] * 30


# --- The first step: nothing right and no gradient ends the run at once.


def hopeless(run_dir: Path, grade: Callable[[Episode], float], **rollout: int) -> TinyRun:
    rollout = {"tasks_per_step": 4, "group_size": 8, **rollout}
    return TinyRun(run_dir, rollout=rollout, run={"max_steps": 2}, guards=defaults(), grade=grade)


async def test_a_first_step_without_anything_right_and_without_a_gradient_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(GuardHalt, match=r"step 0: guards.start: .* no gradient; .* resume it with guards.start.action"):
        await hopeless(tmp_path, lambda episode: 0.0).go()
    assert not (tmp_path / "metrics.jsonl").exists()


async def test_resumed_without_that_guard_it_goes_on(tmp_path: Path) -> None:
    run = hopeless(tmp_path, lambda episode: 0.0)
    with pytest.raises(GuardHalt):
        await run.go()
    guards = {name: guard for name, guard in defaults().items() if name != "start"}
    await replace(run, guards=guards).go()
    assert len(rows(tmp_path)) == 2


@pytest.mark.parametrize(
    ("grade", "group_size"),
    [
        (lambda episode: 1.0, 8),  # right, though no gradient
        (lambda episode: -float(episode.sample_index), 8),  # a gradient, though nothing right
        (lambda episode: 0.0, 7),  # 28 episodes: too few to say
    ],
)
async def test_any_other_first_step_is_trained_on(tmp_path: Path, grade: Any, group_size: int) -> None:
    await hopeless(tmp_path, grade, group_size=group_size).go()
    assert len(rows(tmp_path)) == 2


async def test_later_steps_may_teach_nothing(tmp_path: Path) -> None:
    begun: list[int] = []

    def grade(episode: Episode) -> float:
        begun.append(1)
        return float(len(begun) <= 32)

    await hopeless(tmp_path, grade).go()
    assert len(rows(tmp_path)) == 2


@pytest.mark.parametrize(("total", "signal"), [(1.0, 1.0), (0.0, 0.0), (-1.0, 0.0)])
def test_what_an_environment_pays_is_a_signal_where_no_judge_says_what_is_right(total: float, signal: float) -> None:
    episode = builders.episode()
    reward = RewardResult(total=total, terms={}, dimensions={}, correctness=0.0)
    equal = ScoredGroup(group=builders.group(*[episode] * 32), rewards=(reward,) * 32, failures=(None,) * 32)
    assert start_tags([equal], [Drop.ZERO_VARIANCE]) == {"start/signal": signal}
