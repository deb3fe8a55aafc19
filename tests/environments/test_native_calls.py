"""Searches as tool calls of a model family: the same world and the same decisions as with tags come to the same."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from agentgrpo.core.errors import RetrieverError
from agentgrpo.core.types import Episode, EpisodeGroup, RewardResult
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.search.calls import as_calls
from agentgrpo.environments.search.context import dropping
from agentgrpo.environments.search.grammar import Planner, Tags
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.rewards.citations import CitationSupport
from agentgrpo.rewards.costs import PerSearch, RerankCost, RetrieverCost
from agentgrpo.rewards.reward import Reward
from agentgrpo.rewards.terms import Correctness, EvidenceGain, FormatChecks, SearchQuality, SubquestionCoverage
from tests import builders
from tests.environments.scripted import (
    ROWS,
    ReversingReranker,
    ScriptedEngine,
    ScriptedFetcher,
    ScriptedJudge,
    ScriptedRetriever,
    renderer,
)
from tests.renderers import families
from tests.runners import search_runner

PRICES = {"web": 0.05, "vdb": 0.01, "rerank": 0.02, "fetch": 0.03}
PAGE = builders.passage("", "All of Velmor.", url="http://x.test/p")

PLAN = "<subquestions>\nT1: who founded Velmor\nT2: where was he born\n</subquestions>"
WEB = '<search retriever="web" rerank="true">[T1] founded Velmor</search>'
TWO = "<searches>\n[T1] founded Velmor\n[T2] born Castin\n</searches>"
VDB = "<search>[T2] born Castin</search>"
OPEN = "<fetch>http://x.test/p, http://x.test/dead</fetch>"
ANSWER = "<answer>Roka [R2Q1D1] [R9Q9D9]</answer>"
SURE = "<search_decision>answer</search_decision><answer>Roka</answer>"

SCRIPTS: dict[str, tuple[str, ...]] = {
    "two hops": (WEB, VDB, ANSWER),
    "a plan, then both at once": (f"{PLAN}\n{TWO}", "<answer>Roka [R1Q2D1]</answer>"),
    "a plan by itself": (PLAN, TWO, ANSWER),
    "repeated": (WEB, WEB, VDB, ANSWER),
    "half repeated": (VDB, TWO, ANSWER),
    "nothing found": ("<search>nobody knows</search>", VDB, ANSWER),
    "rerank": (WEB, VDB, "<rerank/>", ANSWER),
    "nothing to rerank": ("<rerank/>", VDB, "<answer>Roka [R1Q1D1]</answer>"),
    "a page": (WEB, OPEN, OPEN, "<answer>Roka [R2Q1D1]</answer>"),
    "part of a page": (WEB, '<fetch find="Velmor">http://x.test/p</fetch>', "<answer>Roka [R1Q1D1]</answer>"),
    "without a search": (SURE,),
    "too early": ("<answer>Roka</answer>", VDB, "<answer>Roka [R1Q1D1]</answer>"),
    "no action": ("", "", VDB, "<answer>Roka [R1Q1D1]</answer>"),
    "never an action": ("", "", "", "<answer>Roka [R1Q1D1]</answer>"),
    "over the limit": (WEB, VDB, "<search>all</search>", "<search>chatter</search>", ANSWER),
    "no answer until it is asked for": (WEB, VDB, WEB, WEB, ANSWER),
}


async def play(form: str, *script: str, as_written: bool = False, **options: Any) -> tuple[Episode, RewardResult]:
    native = form != "tags"
    speaks = families.renderer(form) if native else renderer()
    script = (*script, *script[-1:] * 6)  # an answer that is rejected is given again
    turns = list(script)
    if native and not as_written:
        turns = [speaks.write(as_calls(Planner().parse(text), Tags())) for text in script]  # type: ignore[attr-defined]
    engine = ScriptedEngine(turns, speaks=speaks, max_context=50_000)
    dead = RetrieverError("no such page", kind="not_found")
    runner = search_runner(
        engine=engine,
        renderer=speaks,
        retrievers={"vdb": ScriptedRetriever(ROWS), "web": ScriptedRetriever(ROWS)},
        evidence=ScriptedJudge([(False, 0.25), (True, 0.75)]),
        reranker=ReversingReranker(),
        fetcher=ScriptedFetcher({"http://x.test/p": PAGE, "http://x.test/dead": dead}),
        call_prices=PRICES,
        native_calls=native,
        max_context=None,
        **{"max_turns": 4, "max_search_limit": 2, "search_budget_per_subquestion": 0, **options},
    )
    task = builders.task("Where was the founder of Velmor born?", "Roka", supporting=["v1", "c1"])
    episode = await runner.run(task, sample_index=0, stream="train/0", sampling=SamplingParams(max_tokens=5_000))
    terms = {
        "correctness": Correctness(weight=1.0),
        "citation_support": CitationSupport(weight=0.3),
        "search_quality": SearchQuality(weight=0.15),
        "coverage": SubquestionCoverage(weight=0.2),
        "gain": EvidenceGain(weight=0.1),
        "format": FormatChecks(weight=0.1),
        "per_search": PerSearch(weight=-0.02),
        "retriever_cost": RetrieverCost(web=-0.05, vdb=-0.01),
        "rerank_cost": RerankCost(weight=-0.02),
    }
    scored = await Reward(judge=ExactMatch(), terms=terms).score(EpisodeGroup(task=task, episodes=(episode,)))
    [reward] = scored.rewards
    assert reward is not None
    return episode, reward


def shown(episode: Episode) -> list[str]:
    """Documents with their labels, as the policy was shown them."""
    told = "\n".join(s.text for branch in episode.branches for s in branch.segments if s.role == "tool")
    return sorted(re.findall(r"\[R\d+Q\d+D\d+\] [^\n\[<]*", told))


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.parametrize("form", ["chatml", "react"])
async def test_calls_and_tags_come_to_the_same(form: str, script: Sequence[str]) -> None:
    tagged, reward = await play("tags", *script)
    called, other = await play(form, *script)
    assert len(called.turns) == len(tagged.turns)
    assert called.metrics == tagged.metrics
    assert called.metrics_by_turn == tagged.metrics_by_turn
    assert called.tool_records == tagged.tool_records  # with prices and results
    assert (called.answer, called.exit) == (tagged.answer, tagged.exit)
    assert called.citations == tagged.citations
    assert called.retrieved_ids == tagged.retrieved_ids
    assert [line.strip() for line in shown(called)] == [line.strip() for line in shown(tagged)]
    assert other == reward


@pytest.mark.parametrize("form", ["qwen3", "llama3", "mistral", "gemma", "chatml_fenced"])
@pytest.mark.parametrize("name", ["a plan, then both at once", "a page", "no answer until it is asked for"])
async def test_every_family_comes_to_the_same(form: str, name: str) -> None:
    tagged, reward = await play("tags", *SCRIPTS[name])
    called, other = await play(form, *SCRIPTS[name])
    assert (called.metrics, called.tool_records) == (tagged.metrics, tagged.tool_records)
    assert (called.answer, called.citations, other) == (tagged.answer, tagged.citations, reward)


async def replied(*turns: str, **options: Any) -> tuple[Episode, list[str]]:
    """What turns written as they are come to, and what they were told."""
    episode, _ = await play("chatml", *turns, as_written=True, **options)
    told = [s.text for branch in episode.branches for s in branch.segments if s.role == "tool"]
    return episode, [
        reply for text in told for reply in re.findall(r"<tool_response>\n(.*?)\n</tool_response>", text, re.DOTALL)
    ]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


ROKA = "Roka [R1Q1D1]<|im_end|>"


async def test_every_call_of_a_turn_is_answered_and_the_round_is_rated_once() -> None:
    both = call("search", query="founded Velmor") + "\n" + call("search", query="born Castin") + "<|im_end|>"
    episode, replies = await replied(both, ROKA)
    first = "[R1Q1D1] (Title: Velmor) Velmor was founded by Castin. URL: http://x.test/velmor#history"
    assert replies[:2] == [
        f"{first}\n[R1Q1D2] Tours of Velmor are popular.",
        "[R1Q2D1] Castin was born in Roka.\nThe evidence is insufficient.",
    ]
    assert episode.metrics["search_rounds"] == 1


async def test_calls_that_are_none_are_told_so_and_count_as_no_action() -> None:
    wrong = "\n".join(
        [call("google", query="x"), call("search"), call("search", query=" "), "<tool_call>\n{\n</tool_call>"]
    )
    episode, replies = await replied(f"{wrong}<|im_end|>", call("search", query="born Castin") + "<|im_end|>", ROKA)
    assert len(replies) == 5
    assert replies[0] == "there is no tool 'google'; there are search, rerank, fetch"
    assert "query" in replies[1]
    assert replies[2] == "the query is empty"
    assert replies[3].endswith("No action was found. Search or answer. Call search or write the answer without a call.")
    assert episode.metrics["format_error_turns"] == 1


async def test_one_kind_of_action_in_a_turn() -> None:
    mixed = [call("fetch", urls=["http://x.test/p"]), call("search", query="born Castin"), call("rerank")]
    episode, replies = await replied("\n".join(mixed) + "<|im_end|>", ROKA)
    assert replies[0] == replies[2].splitlines()[0] == "Not done: a turn searches, reranks or fetches, in this order."
    assert [r.name for r in episode.tool_records] == ["search"]


async def test_a_tag_in_words_is_no_action_and_no_answer() -> None:
    episode, _ = await replied(
        "<search>born Castin</search><|im_end|>", call("search", query="all") + "<|im_end|>", ROKA
    )
    assert episode.metrics["format_error_turns"] == 1
    assert episode.metrics["search_rounds"] == 1


async def test_fresh_contexts_go_on_with_calls_and_their_replies() -> None:
    script = [call("search", query=q) + "<|im_end|>" for q in ("founded Velmor", "born Castin", "chatter")]
    episode, _ = await replied(*script, "Roka [R2Q1D1]<|im_end|>", context=dropping(max_tokens=1), max_search_limit=5)
    assert len(episode.branches) > 1
    assert [turn.text for turn in episode.turns] == [*script, "Roka [R2Q1D1]<|im_end|>"]
    assert [c.doc_id for c in episode.citations] == ["c1"]
    alone, _ = await replied(*script, "Roka [R2Q1D1]<|im_end|>", max_search_limit=5)
    assert {k: episode.metrics[k] for k in alone.metrics} == alone.metrics
    for branch in episode.branches[1:]:
        repeated = next(s for s in branch.segments[1:] if s.role == "assistant")
        assert not repeated.sampled


async def test_the_policy_is_told_how_to_call_and_shown_no_tags_of_actions() -> None:
    episode, _ = await replied(call("search", query="all") + "<|im_end|>", ROKA)
    prompt = episode.branches[0].segments[0].text
    assert '"name": "fetch"' in prompt
    assert "A turn without a call is the answer" in prompt
    assert "<search>" not in prompt
    assert "<answer>" not in prompt
