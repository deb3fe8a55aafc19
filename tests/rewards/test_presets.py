"""Every preset's totals on three episodes, computed by hand: weights that change, change one row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentgrpo.config.build import resolve
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Citation, Episode, Outcome, Segment, ToolRecord
from agentgrpo.environments.memory.metrics import NAMES
from agentgrpo.environments.search.metrics import episode_metrics
from agentgrpo.environments.search.state import SearchState
from agentgrpo.environments.tools.state import ToolState
from agentgrpo.environments.tools.state import episode_metrics as tool_metrics
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.judges.base import AnswerJudge
from agentgrpo.rewards.base import RewardTerm
from agentgrpo.rewards.registry import Reward
from tests.builders import episode, given, group, sampled, task

PRESETS = Path(__file__).parents[2] / "configs" / "reward"


def build(name: str, judge: AnswerJudge | None = None) -> Reward:
    """The preset as the YAML has it; without a judge with that of exact matches."""
    config = yaml.safe_load((PRESETS / f"{name}.yaml").read_text(encoding="utf-8"))
    assert config.pop("name") == "weighted"
    terms = {name: term(name, weights) for name, weights in config.pop("terms").items()}
    return Reward(judge=judge or ExactMatch(), terms=terms, **config)


def term(name: str, node: Mapping[str, Any]) -> RewardTerm:
    """As a configuration names it: by the key, or by `name`."""
    weights = dict(node)
    made: RewardTerm = resolve("term", weights.pop("name", name), f"reward.terms.{name}")(**weights)
    return made


NOTHING = dict.fromkeys(
    (
        "rounds_used",
        "web_served",
        "vdb_served",
        "rerank_calls",
        "automatic_searches",
        "repeated_search_queries",
        "evidence_gain_total",
        "early_stops",
        "active_subquestions",
        "subquestion_coverage_ratio",
        "final_evidence_sufficient",
        "search_quality_score",
        "answer_allowed",
        "useful_fetched_pages",
        "unnecessary_fetch_count",
        "answer_when_evidence_insufficient",
        "forced_final_answer",
        "search_budget_exhausted_without_answer",
        "format_error_turns",
    ),
    0.0,
)


def said(text: str) -> Segment:
    return replace(sampled(1), text=text)


def shown(text: str) -> Segment:
    return replace(given(2, role="tool"), text=text)


def calls(*outcomes: Outcome) -> tuple[ToolRecord, ...]:
    return tuple(ToolRecord(name="search", arguments={}, outcome=o, turn=0) for o in outcomes)


def right() -> Episode:
    """Two rounds, one of each retriever, one rerank; the right answer with the one result cited that supports it."""
    spent = {"rounds_used": 2.0, "web_served": 1.0, "vdb_served": 1.0, "rerank_calls": 1.0}
    found = {
        "evidence_gain_total": 0.8,
        "early_stops": 1.0,
        "active_subquestions": 2.0,
        "subquestion_coverage_ratio": 0.5,
    }
    quality = {"final_evidence_sufficient": 1.0, "search_quality_score": 0.6}
    of = episode(
        task(),
        said("<think>a</think><search>q</search>"),
        shown("<information>d</information>"),
        said("<think>b</think><answer>Castin</answer>"),
        metrics=NOTHING | spent | found | quality | {"reward": 0.25},
        citations=[Citation(doc_id="p1", marker="[R1Q1D1]", text="Velmor was founded by Castin.")],
        retrieved=["p1", "p2", "p3", "p4"],
    )
    return replace(of, tool_records=calls(Outcome.SUCCESS, Outcome.SUCCESS, Outcome.TIMEOUT))


def wrong() -> Episode:
    """Five wasteful rounds, then a forced wrong answer that cites nothing."""
    spent = {"rounds_used": 5.0, "web_served": 4.0, "vdb_served": 2.0, "rerank_calls": 3.0}
    waste = {"repeated_search_queries": 2.0, "unnecessary_fetch_count": 2.0, "useful_fetched_pages": 0.0}
    found = {"evidence_gain_total": 0.3, "active_subquestions": 1.0, "subquestion_coverage_ratio": 1.0}
    found |= {"search_quality_score": 0.2}
    faults = {"answer_when_evidence_insufficient": 1.0, "forced_final_answer": 1.0, "format_error_turns": 1.0}
    of = episode(
        task(),
        said("<search>q</search>"),
        shown("<information><answer>Castin</answer></information>"),
        said("<answer>Orlin</answer>"),
        answer="Orlin",
        metrics=NOTHING | spent | waste | found | faults | {"reward": -0.5},
        retrieved=["p1", "p2"],
    )
    return replace(of, tool_records=calls(Outcome.INVALID_ARGS))


def silent() -> Episode:
    """Five vdb rounds and no answer; a fetched page that would have been of use."""
    spent = {"rounds_used": 5.0, "vdb_served": 5.0, "search_budget_exhausted_without_answer": 1.0}
    found = {"evidence_gain_total": 0.4, "subquestion_coverage_ratio": 1.0, "search_quality_score": 0.3}
    metrics = NOTHING | spent | found | {"useful_fetched_pages": 1.0, "reward": 0.0}
    return episode(task(), said("gibberish"), answer=None, metrics=metrics, retrieved=["p1"])


SECOND_PASS = (
    1.0 - 2 * 0.02 + 0.1,  # correct, 2 rounds, all that is cited supports it
    -5 * 0.02 - 0.1 - 2 * 0.05,  # 5 rounds, unsupported, 2 duplicates
    -5 * 0.02,
)
GOLDEN: dict[str, tuple[float, float, float]] = {
    "shaped": (
        1.0 + 0.2 + 0.05 * 0.5 + 0.1 * (1 + 0.6) / 2 - 0.05,
        # coverage, quality, 4 rounds too many, 2 duplicates, budget, 2 fetches, insufficient, forced
        0.05 + 0.1 * 0.2 / 2 - 4 * 0.05 - 2 * 0.1 - 0.1 - 2 * 0.1 - 0.2 - 0.05,
        # fetch, 4 rounds too many, budget, exhausted; coverage and quality are nothing without an answer
        0.05 - 4 * 0.05 - 0.1 - 0.2,
    ),
    "sparse_final_only": (1.0, 0.0, 0.0),
    "correctness": (1.0, 0.0, 0.0),
    "sparse_with_search_penalty": (1.0 - 2 * 0.02, -5 * 0.02, -5 * 0.02),
    "second_pass": SECOND_PASS,
    # right: 4 of 4 checks; form is nothing of a wrong answer
    "third_pass_with_format": (SECOND_PASS[0] + 0.1, *SECOND_PASS[1:]),
    "retriever_aware_v0": (
        SECOND_PASS[0] - 0.05 - 0.01 - 0.02 + 0.1 * 0.8,
        SECOND_PASS[1] - 4 * 0.05 - 2 * 0.01 - 3 * 0.02 + 0.1 * 0.3,
        SECOND_PASS[2] - 5 * 0.01,  # no answer, no gain
    ),
    "retriever_aware": (
        SECOND_PASS[0] - 0.20 - 0.04 - 0.04 + 0.1 * 0.8,
        -0.1 + 0.1 * 0.3,  # unsupported and gain: a wrong answer pays for no search
        0.0,
    ),
    "search_r1": (1.0, 0.0, 0.0),
    "search_r1_structured": (1.0, 0.1, 0.0),
    # 3 calls, 2 of them successful; 1 invalid call and a format error; no answer
    "react": (1.0, -0.1 - 0.3, -0.3),
    "tools": (1.0 + 0.2 * 2 / 3 - 3 * 0.1, -0.1 - 0.3, -0.3),
    "calls": (1.0 - 3 * 0.05, -0.1 - 0.3, -0.3),
    # what the environment paid, whatever the judge says
    "environment": (0.25, -0.5, 0.0),
    # answer + format + tools
    "artist": (2.0 + (4 * 0.125 + 0.5) + 2 / 3, 0.0 + 3 * 0.125 + 0.0, 0.0),
}
MEMORY = ("mem_alpha", "memory", "personamem")
"""Those of memories have theirs in test_memory."""


def test_every_preset_has_its_golden_row() -> None:
    assert sorted([*GOLDEN, *MEMORY, "own"]) == sorted(p.stem for p in PRESETS.glob("*.yaml"))


@pytest.mark.parametrize("name", sorted(GOLDEN))
async def test_totals_of_a_preset(name: str) -> None:
    scored = await build(name).score(group(right(), wrong(), silent()))
    assert [r and r.total for r in scored.rewards] == pytest.approx(GOLDEN[name], abs=1e-12)


@pytest.mark.parametrize(("retriever", "price"), [("web", 0.07), ("vdb", 0.03)])
async def test_the_price_of_one_round_under_retriever_aware_v0(retriever: str, price: float) -> None:
    idle = episode(metrics=NOTHING)
    one_round = episode(metrics=NOTHING | {"rounds_used": 1.0, f"{retriever}_served": 1.0})
    before, after = (await build("retriever_aware_v0").score(group(idle, one_round))).rewards
    assert before is not None
    assert after is not None
    assert before.total - after.total == pytest.approx(price, abs=1e-12)
    assert after.dimensions["search_efficiency"] == pytest.approx(-price, abs=1e-12)


@pytest.mark.parametrize("name", ["retriever_aware_v0", "retriever_aware"])
def test_web_costs_five_times_vdb(name: str) -> None:
    prices = yaml.safe_load((PRESETS / f"{name}.yaml").read_text(encoding="utf-8"))["terms"]["retriever_cost"]
    assert prices["web"] == pytest.approx(5 * prices["vdb"])


@pytest.mark.parametrize("path", sorted(PRESETS.glob("*.yaml")), ids=lambda p: p.stem)
def test_a_preset_says_what_it_is_for_and_how_to_launch_it(path: Path) -> None:
    header = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert len(header) >= 2
    chosen = "my_rewards:" if path.stem == "own" else rf"{path.stem}\b"
    launch = rf"# +agentgrpo train (environment=my_env:Shop )?\+?reward={chosen}"
    assert [line for line in header if re.match(launch, line)]


ALL = sorted({path.stem for path in PRESETS.glob("*.yaml")} - {"own"})
SEARCHING = frozenset(episode_metrics(SearchState(question=""), limit=1, answered=False))
REMEMBERING = frozenset(NAMES)
CALLING = frozenset(tool_metrics(ToolState(), tools=["calculator"]))


def fits(name: str, metrics: frozenset[str]) -> bool:
    try:
        build(name).refuse_uncounted(metrics)
    except ConfigError:
        return False
    return True


def test_which_presets_fit_which_environment() -> None:
    assert [name for name in ALL if not fits(name, SEARCHING)] == ["environment", *MEMORY]
    for_tools = ["artist", "calls", "correctness", "react", "search_r1", "sparse_final_only", "tools"]
    assert [name for name in ALL if fits(name, CALLING)] == for_tools
    whatever = {"correctness", "search_r1", "sparse_final_only", "artist"}
    assert {name for name in ALL if fits(name, REMEMBERING)} == {*MEMORY, *whatever}
