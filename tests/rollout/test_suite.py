"""A suite's groups, and the tags of its members."""

from __future__ import annotations

from agentgrpo.core.types import Episode, RewardResult, ScoredGroup, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.figures import Figures
from agentgrpo.environments.search.metrics import SEARCH_FIGURES
from agentgrpo.environments.tools.state import tool_figures
from agentgrpo.rollout.groups import run_groups
from agentgrpo.rollout.metrics import rollout_metrics, suite_metrics
from agentgrpo.tasks.suite import member_of
from tests import builders

FACT, SUM = builders.task(id="facts:1"), builders.task(id="sums:1")


class Instant:
    note, figures = "", SEARCH_FIGURES

    async def run(
        self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams, attempt: int = 0
    ) -> Episode:
        return builders.episode(task, sample_index=sample_index)


async def test_each_task_may_have_a_group_of_its_own_size() -> None:
    sizes = {"facts": 3, "sums": 2}
    groups = await run_groups(
        Instant(),
        [SUM, FACT],
        group_size=lambda task: sizes[member_of(task)],
        stream="train/0",
        sampling=SamplingParams(max_tokens=1),
    )
    assert [(g.task.id, [e.sample_index for e in g.episodes]) for g in groups] == [
        ("sums:1", [0, 1]),
        ("facts:1", [0, 1, 2]),
    ]


def scored(of: Task, total: float, term: str, **metrics: float) -> ScoredGroup:
    result = RewardResult(total=total, terms={term: total, "all": 1.0}, dimensions={}, correctness=total)
    return ScoredGroup(group=builders.group(builders.episode(of, metrics=metrics)), rewards=(result,))


def test_members_have_tags_of_their_own_and_what_only_one_has_is_in_no_mean_of_all() -> None:
    groups = [
        scored(FACT, 1.0, "cited", searches=2.0, turns=1.0),
        scored(FACT, 0.0, "cited", searches=1.0, turns=1.0),
        scored(SUM, 0.5, "calls", calls=4.0, turns=4.0),
    ]

    def cost(episode: Episode) -> float:
        return episode.metrics.get("searches", 0.0)

    every = rollout_metrics(groups, [None] * 3, cost)
    tags = suite_metrics(every, groups, [None] * 3, cost)
    assert {k: v for k, v in tags.items() if k.startswith(("agent/", "reward/", "correctness", "cost/"))} == {
        "reward/mean": 0.5,
        "reward/std": every["reward/std"],
        "reward/term/all": 1.0,
        "correctness": 0.5,
        "agent/turns": 2.0,
        "cost/episode": 1.0,
        "cost/step": 3.0,
    }
    assert (tags["suite/facts/agent/searches"], tags["suite/facts/reward/mean"]) == (1.5, 0.5)
    assert (tags["suite/sums/agent/calls"], tags["suite/sums/reward/term/calls"]) == (4.0, 0.5)
    assert (tags["suite/facts/groups/total"], tags["suite/sums/episodes/total"]) == (2.0, 1.0)
    assert "suite/sums/agent/searches" not in tags


def test_figures_of_a_suite_are_what_its_members_have_in_common() -> None:
    figures = Figures.of_suite({"facts": SEARCH_FIGURES, "sums": tool_figures(("calculator",))})
    assert figures.headline == ("correctness", "calls", "cost")
    assert Figures.from_json(figures.to_json()) == figures
    reward = RewardResult(total=0.25, terms={}, dimensions={}, correctness=0.75)
    search = builders.episode(FACT, metrics={"search_rounds": 3.0, "web_calls": 2.0})
    tools = builders.episode(SUM, metrics={"failed_calls": 1.0, "calls/calculator": 2.0})
    price = figures.members["sums"].prices["calculator"]
    assert figures.row(search, reward, {}) == {"correctness": 0.75, "calls": 3.0, "cost": 0.1, "reward": 0.25}
    assert figures.row(tools, reward, {}) == {"correctness": 0.75, "calls": 1.0, "cost": 2 * price, "reward": 0.25}
    assert (figures.cost_of(search, {}), figures.cost_of(tools, {})) == (0.1, 2 * price)
