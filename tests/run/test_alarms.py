"""The default guards: those that every run must have, and none that an environment cannot set off."""

from __future__ import annotations

from functools import cache

import pytest
import yaml

from agentgrpo.cli.main import configs_dir
from agentgrpo.core.types import Exit, RewardResult, ScoredGroup
from agentgrpo.environments.search.metrics import episode_metrics as search_metrics
from agentgrpo.environments.search.state import SearchState
from agentgrpo.environments.tools.state import ToolState
from agentgrpo.environments.tools.state import episode_metrics as tool_metrics
from agentgrpo.rollout.metrics import rollout_metrics
from agentgrpo.run.guards import LEAST, Guard, Guards
from tests import builders

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
