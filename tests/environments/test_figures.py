"""What is reported of each environment: values by hand, prices, and a kind that nobody has thought of yet."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Exit, Failure, RewardResult
from agentgrpo.environments.figures import Figures
from agentgrpo.environments.memory.metrics import MEMORY_FIGURES
from agentgrpo.environments.search.metrics import SEARCH_FIGURES
from agentgrpo.environments.tools.state import tool_figures
from tests.builders import episode

GRADED = RewardResult(total=0.75, terms={}, dimensions={}, correctness=1.0)
LOST = replace(episode(), exit=Exit.ERROR, metrics={}, failure=Failure(kind="x", stage="y", message="z"))


def test_a_search_episode_by_hand() -> None:
    metrics = {"search_rounds": 3.0, "web_searches": 1.0, "vdb_searches": 3.0, "rerank_calls": 2.0}
    metrics |= {"web_fraction": 0.25, "rerank_rate": 0.5}
    metrics |= {"web_calls": 1.0, "vdb_calls": 4.0}  # the web search failed and was served by vdb
    found = SEARCH_FIGURES.row(
        episode(metrics=metrics | {"evidence_score_final": 0.9, "tool_turns": 4.0}), GRADED, SEARCH_FIGURES.priced({})
    )
    assert list(found.items()) == [
        ("correctness", 1.0),
        ("search_rounds", 3.0),
        ("web_searches", 1.0),
        ("vdb_searches", 3.0),
        ("rerank_calls", 2.0),
        ("cost", 0.05 + 4 * 0.01 + 2 * 0.02),
        ("reward", 0.75),
        ("web_fraction", 0.25),
        ("rerank_rate", 0.5),
        ("evidence_score_final", 0.9),
    ]


def test_a_tool_episode_by_hand() -> None:
    figures = tool_figures(["python", "lookup"])
    metrics = {"tool_calls": 3.0, "failed_calls": 1.0, "invalid_calls": 1.0, "tool_turns": 2.0, "looping": 1.0}
    metrics |= {"calls/python": 1.0, "calls/lookup": 2.0}
    found = figures.row(episode(metrics=metrics), GRADED, figures.priced({"python": 0.3}))
    assert list(found.items()) == [
        ("success", 1.0),
        ("tool_calls", 3.0),
        ("failed_calls", 1.0),
        ("tool_turns", 2.0),
        ("cost", 0.3 + 2 * 0.01),
        ("reward", 0.75),
        ("invalid_calls", 1.0),
        ("calls/python", 1.0),
        ("calls/lookup", 2.0),
    ]


def test_a_memory_episode_by_hand() -> None:
    metrics = {"memory_tokens": 30.0, "compression": 0.75, "memory_share": 0.25, "validity": 0.5, "entries": 4.0}
    metrics |= {"calls": 9.0, "calls_per_chunk": 1.5, "executed": 5.0, "failed_calls": 2.0, "skips": 2.0, "stray": 1.0}
    metrics |= {"reader_calls": 7.0, "truncated_chunks": 3.0, "chunks": 6.0}
    found = MEMORY_FIGURES.row(episode(metrics=metrics), GRADED, MEMORY_FIGURES.priced({"write": 0.1}))
    assert list(found.items()) == [
        ("correctness", 1.0),
        ("memory_tokens", 30.0),
        ("compression", 0.75),
        ("validity", 0.5),
        ("calls_per_chunk", 1.5),
        ("cost", 5 * 0.1 + 7 * 0.01),
        ("reward", 0.75),
        ("memory_share", 0.25),
        ("calls", 9.0),
        ("failed_calls", 2.0),
        ("stray", 1.0),
        ("skips", 2.0),
        ("entries", 4.0),
        ("empty_memory", 0.0),
        ("truncated_chunks", 3.0),
    ]


@pytest.mark.parametrize("figures", [SEARCH_FIGURES, tool_figures(["python"]), tool_figures([]), MEMORY_FIGURES])
def test_an_episode_that_failed_got_nothing(figures: Figures) -> None:
    row = figures.row(LOST, None, figures.priced({}))
    assert set(row) == {*figures.columns, figures.quality, "cost", "reward"}
    assert set(row.values()) == {0.0}


def test_prices_take_the_place_of_the_environments_own() -> None:
    assert SEARCH_FIGURES.priced({}) == {"web": 0.05, "vdb": 0.01, "rerank": 0.02}
    assert SEARCH_FIGURES.priced({"web": 0.0}) == {"web": 0.0, "vdb": 0.01, "rerank": 0.02}
    assert tool_figures(["a", "b"]).priced({"b": 2.0}) == {"a": 0.01, "b": 2.0}


@pytest.mark.parametrize(
    ("figures", "name", "message"),
    [
        (
            SEARCH_FIGURES,
            "wbe",
            r"run.eval.prices.wbe: this environment counts web, vdb, rerank; .* Did you mean 'web'\?",
        ),
        (
            tool_figures(["lookup"]),
            "web",
            "run.eval.prices.web: this environment counts lookup; price these, or leave it out",
        ),
        (
            tool_figures([]),
            "python",
            r"run.eval.prices.python: this environment counts no calls \(tools=none\); add tools, or leave it out",
        ),
    ],
)
def test_a_price_of_no_call_is_refused(figures: Figures, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        figures.priced({name: 1.0})


GOOD: dict[str, Any] = {
    "columns": ("writes",),
    "headline": ("right", "writes", "cost"),
    "by_kind": ("right", "reward"),
    "quality": "right",
    "spending": "writes",
    "labels": {"writes": "w"},
    "counts": {"write": "writes"},
    "prices": {"write": 1.0},
}


@pytest.mark.parametrize(
    ("changes", "odd"),
    [
        ({"headline": ("right", "writes", "wrong")}, "wrong"),
        ({"by_kind": ("writs",)}, "writs"),
        ({"labels": {"writ": "w"}}, "writ"),
        ({"headline": ("writes", "cost")}, "right"),
        ({"spending": "reward"}, "reward"),
        ({"prices": {}}, "write"),
        ({"counts": {}}, "write"),
    ],
)
def test_figures_that_do_not_fit_together_are_refused(changes: dict[str, Any], odd: str) -> None:
    assert Figures(**GOOD).label("writes") == "w"
    with pytest.raises(ValueError, match=rf"figures \['{odd}'\]"):
        Figures(**GOOD | changes)


def test_a_quality_that_the_environment_measures_itself() -> None:
    """The judge's grade of 1.0 is not what counts."""
    figures = Figures(**GOOD | {"quality": "score", "headline": ("score", "writes"), "by_kind": (), "is_graded": False})
    metrics = {"score": 0.25, "writes": 3.0}
    assert figures.row(episode(metrics=metrics), GRADED, figures.priced({})) == {
        "score": 0.25,
        "writes": 3.0,
        "reward": 0.75,
        "cost": 3.0,
    }
    assert figures.row(LOST, None, figures.priced({}))["score"] == 0.0


def test_a_grade_takes_the_place_of_the_reward_and_of_nothing_else() -> None:
    bare = Figures(
        columns=("writes",),
        headline=("reward", "writes", "cost"),
        by_kind=("reward", "writes"),
        quality="reward",
        is_graded=False,
        spending="writes",
    )
    graded = bare.graded()
    assert (graded.headline, graded.by_kind) == (("correctness", "writes", "cost"), ("correctness", "writes"))
    assert graded.row(episode(metrics={"writes": 2.0}), GRADED, {}) == {
        "correctness": GRADED.correctness,
        "writes": 2.0,
        "cost": 0.0,
        "reward": GRADED.total,
    }
    own = Figures(**GOOD | {"quality": "score", "headline": ("score", "writes"), "by_kind": (), "is_graded": False})
    assert own.graded() == own
    assert SEARCH_FIGURES.graded() == SEARCH_FIGURES


@pytest.mark.parametrize(
    "figures",
    [SEARCH_FIGURES, tool_figures(["python"]), tool_figures([]), MEMORY_FIGURES, Figures(**GOOD, is_graded=False)],
)
def test_figures_come_back_from_json(figures: Figures) -> None:
    assert Figures.from_json(json.loads(json.dumps(figures.to_json()))) == figures


def test_figures_that_an_older_version_wrote_have_no_cost() -> None:
    old = {
        "headline": ["correctness", "memory_tokens", "cost"],
        "by_kind": {"correctness": "correctness"},
        "quality": "correctness",
        "spending": "memory_tokens",
    }
    found = Figures.from_json(old)
    assert (found.headline, found.quality, found.spending) == (
        ("correctness", "memory_tokens"),
        "correctness",
        "memory_tokens",
    )
    assert found.cost({"memory_tokens": 4.0}, found.priced({})) == 0.0
    with pytest.raises(KeyError):
        Figures.from_json({"quality": "correctness"})
