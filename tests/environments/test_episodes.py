"""Whole episodes, segment by segment and metric by metric."""

import asyncio
import inspect
from pathlib import Path

import pytest
import yaml

from agentgrpo.config import registry
from agentgrpo.core.errors import ConfigError, EngineError, JudgeError
from agentgrpo.core.types import Citation, Exit, Message, Outcome, Passage, Task, ToolRecord
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.environments.search.environment import SearchEnvironments
from agentgrpo.judges.base import QueryResults
from tests import builders
from tests.environments.scripted import (
    ANSWER,
    CASTIN,
    DECIDED,
    HOP_1,
    HOP_2,
    NOTHING,
    PROMPT,
    ROWS,
    SHOWN_1,
    SHOWN_2,
    VELMOR,
    ScriptedEngine,
    ScriptedJudge,
    ScriptedRetriever,
    play,
    renderer,
)
from tests.runners import search_runner


async def test_two_hops_segment_by_segment() -> None:
    played = await play(HOP_1, HOP_2, ANSWER, verdicts=[(False, 0.25), (True, 0.75)])
    branch = played.episode.branches[0]
    texts = [PROMPT, HOP_1, SHOWN_1, HOP_2, SHOWN_2, ANSWER]
    assert [s.text for s in branch.segments] == texts
    assert [s.role for s in branch.segments] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [s.sampled for s in branch.segments] == [False, True, False, True, False, True]
    assert [s.policy_version for s in branch.segments] == [None, 3, None, 3, None, 3]
    assert [renderer().decode(s.token_ids) for s in branch.segments] == texts
    assert branch.segments[3].logprobs == tuple(-i / 8 for i in range(len(branch.segments[3].token_ids)))
    # what the engine saw before each turn is exactly the concatenation of the segments before it
    assert played.engine.contexts == ["".join(texts[:1]), "".join(texts[:3]), "".join(texts[:5])]
    assert played.episode.answer == "Roka"
    assert played.episode.citations == (
        Citation(doc_id="c1", marker="[R2Q1D1]", text="Castin was born in Roka.", places=(4,)),
    )
    assert played.episode.retrieved_ids == ("v1", "n1", "c1")
    assert (played.episode.exit, played.episode.failure, played.episode.sample_index) == (Exit.ANSWERED, None, 2)


async def test_two_hops_metric_by_metric() -> None:
    played = await play(HOP_1, HOP_2, ANSWER, verdicts=[(False, 0.25), (True, 0.75)])
    assert played.episode.metrics == NOTHING | {
        "search_rounds": 2.0,
        "rounds_used": 2.0,
        "search_queries": 2.0,
        "web_searches": 1.0,
        "web_served": 1.0,
        "web_calls": 1.0,
        "vdb_searches": 1.0,
        "vdb_served": 1.0,
        "vdb_calls": 1.0,
        "web_fraction": 0.5,
        "rerank_requested": 1.0,
        "rerank_skipped": 1.0,  # there is no reranker
        "evidence_insufficient_rounds": 1.0,
        "evidence_sufficient_rounds": 1.0,
        "search_quality_score": 0.5,
        "duplicate_search_results_removed": 1.0,  # the chatter
        "evidence_score_final": 0.75,
        "evidence_gain_total": 0.75,
        "final_evidence_sufficient": 1.0,
        "budget_used_ratio": 0.4,
        "citation_count": 1.0,
        "answer_allowed": 1.0,
        "exit_answered": 1.0,
        "tool_turns": 2.0,
    }
    assert all(type(value) is float for value in played.episode.metrics.values())


async def test_two_hops_calls() -> None:
    played = await play(HOP_1, HOP_2, ANSWER, verdicts=[(False, 0.25), (True, 0.75)])
    assert played.web is not None
    assert (played.web.calls, played.vdb.calls) == ([("founded Velmor", 5)], [("born Castin", 5)])
    assert played.judge.rounds == [
        [
            QueryResults(
                query="founded Velmor", passages=(VELMOR, builders.passage("n1", "Tours of Velmor are popular."))
            )
        ],
        [QueryResults(query="born Castin", passages=(CASTIN,))],
    ]
    assert played.judge.seen == [["v1", "n1"], ["v1", "n1", "c1"]]
    assert played.turns == [(0, "search", 2), (1, "search", 1), (2, None, 0)]
    assert played.episode.tool_records == (
        ToolRecord(
            name="search",
            arguments={
                "query": "founded Velmor",
                "retriever": "web",
                "rerank": True,
                "subquestion": None,
                "served": "web",
            },
            outcome=Outcome.SUCCESS,
            turn=0,
            num_results=2,
            result_ids=("v1", "n1"),
        ),
        ToolRecord(
            name="search",
            arguments={
                "query": "born Castin",
                "retriever": "vdb",
                "rerank": False,
                "subquestion": None,
                "served": "vdb",
            },
            outcome=Outcome.SUCCESS,
            turn=1,
            num_results=2,
            result_ids=("c1", "n1"),
        ),
    )


async def test_seeds_stops_clocks_and_release() -> None:
    played = await play(HOP_1, ANSWER, max_tokens=99)
    assert played.engine.keys == [SeedKey("train/3", "t7", 2, 0), SeedKey("train/3", "t7", 2, 1)]
    stops = ("</search>", "</searches>", "</fetch>", "</answer>", "<rerank/>")
    expected = SamplingParams(max_tokens=99, stop=stops, stop_token_ids=renderer().stop_token_ids)
    assert played.engine.samplings == [expected, expected]
    assert played.engine.released == [("train/3", "t7", 2)]
    timings = played.episode.timings
    assert timings.keys() == {"time_generate", "time_tools", "time_queue"}
    assert (timings["time_generate"], timings["time_queue"]) == (1.0, 0.5)
    assert 0 < timings["time_tools"] < 1


async def test_the_opening_is_the_system_prompt_the_tasks_messages_and_the_question() -> None:
    task = Task(
        id="t0",
        messages=(
            Message(role="system", content="Be brief."),
            Message(role="user", content="2 + 2?"),
            Message(role="assistant", content="4"),
            Message(role="user", content="3 + 3?"),
        ),
        references=("6",),
    )
    for prompt, first in ((None, ""), ("Search.", "Search.\n")):
        engine = ScriptedEngine([DECIDED + "<answer>6</answer>"])
        vdb = ScriptedRetriever({})
        agent = search_runner(
            engine=engine,
            renderer=renderer(),
            retrievers={"vdb": vdb, "web": vdb},
            evidence=ScriptedJudge(),
            system_prompt=prompt,
        )
        await agent.run(task, sample_index=0, stream="s", sampling=SamplingParams(max_tokens=500))
        assert engine.contexts == [f"{first}Be brief.\n2 + 2?\n4\nQuestion: 3 + 3?\n"]


async def test_an_evidence_judge_may_ask_and_is_counted_and_closed() -> None:
    class Asking(ScriptedJudge):
        closed = False

        async def judge_round(self, task, results, seen):  # type: ignore[no-untyped-def]
            await asyncio.sleep(0)
            return super().judge_round(task, results, seen)

        def counts(self) -> dict[str, float]:
            return {"calls": float(len(self.rounds))}

        async def close(self) -> None:
            self.closed = True

    judge = Asking([(False, 0.25), (True, 1.0)])
    vdb = ScriptedRetriever(ROWS)
    agent = search_runner(
        engine=ScriptedEngine([HOP_1, HOP_2, ANSWER]),
        renderer=renderer(),
        retrievers={"vdb": vdb, "web": vdb},
        evidence=judge,
    )
    episode = await agent.run(builders.task(), sample_index=0, stream="s", sampling=SamplingParams(max_tokens=500))
    assert episode.metrics_by_turn["evidence_gain_total"][:2] == (0.25, 0.75)
    assert agent.environment.counts() == {"evidence/calls": 2.0}
    await agent.environment.close()
    assert judge.closed


async def test_the_engine_context_is_released_however_the_episode_ends() -> None:
    class Failing(ScriptedJudge):
        def judge_round(self, task, results, seen):  # type: ignore[no-untyped-def]
            raise ZeroDivisionError("empty")

    engine = ScriptedEngine([HOP_1])
    vdb = ScriptedRetriever(ROWS)
    agent = search_runner(engine=engine, renderer=renderer(), retrievers={"vdb": vdb, "web": vdb}, evidence=Failing())
    with pytest.raises(JudgeError, match="evidence judge: ZeroDivisionError: empty"):
        await agent.run(builders.task(), sample_index=1, stream="s", sampling=SamplingParams(max_tokens=500))
    assert engine.released == [("s", "t0", 1)]


async def test_an_engine_that_fails_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match="engine: IndexError"):
        await play(HOP_1)  # the script is over before the episode


async def test_a_cancelled_episode_cancels_its_queries() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    class Hanging(ScriptedRetriever):
        async def search(self, query: str, *, top_k: int) -> list[Passage]:
            started.set()
            try:
                await asyncio.sleep(3600)
            finally:
                ended.set()
            return []

    vdb, engine = Hanging({}), ScriptedEngine(["<searches>a\nb</searches>"])
    agent = search_runner(
        engine=engine, renderer=renderer(), retrievers={"vdb": vdb, "web": vdb}, evidence=ScriptedJudge()
    )
    run = asyncio.create_task(
        agent.run(builders.task(), sample_index=0, stream="s", sampling=SamplingParams(max_tokens=500))
    )
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert ended.is_set()
    assert engine.released == [("s", "t0", 0)]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_turns": 0}, "environment.max_turns 0: 1 or more is allowed"),
        ({"max_search_limit": 0}, "environment.max_search_limit 0: 1 or more is allowed"),
        ({"evidence_plateau_min_gain": -0.1}, "environment.evidence_plateau_min_gain -0.1: 0.0 or more"),
        ({"top_k": 30}, r"environment.rerank_candidates 20: at least top_k \(30\) is allowed"),
        ({"tags": {"serch": "x"}}, "Did you mean 'search'"),
        ({"retrievers": {}}, "retrievers none: vdb is needed, and only web is allowed"),
        ({"retrievers": {"vdb": None, "bing": None}}, "retrievers vdb, bing: vdb is needed"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, object], message: str) -> None:
    vdb = ScriptedRetriever({})
    parts = {"engine": ScriptedEngine([]), "renderer": renderer(), "evidence": ScriptedJudge()}
    with pytest.raises(ConfigError, match=message):
        search_runner(**(parts | {"retrievers": {"vdb": vdb, "web": vdb}} | options))  # type: ignore[arg-type]


def test_the_yaml_node_is_the_signature_with_its_defaults() -> None:
    node = yaml.safe_load((Path(__file__).parents[2] / "configs/environment/search.yaml").read_text())
    parts = {"renderer", "retrievers", "training_retrievers", "evidence", "reranker", "fetcher", "context", "on_turn"}
    parts |= registry.PROVIDED["environment"]
    parameters = inspect.signature(SearchEnvironments).parameters
    assert node.pop("name") == "search"
    assert node.pop("fetcher")["name"] == "none"
    assert node.pop("defaults") == ["_self_", {"reranker": "lexical"}, {"context": "none"}, {"evidence": "lexical"}]
    assert node == {name: p.default for name, p in parameters.items() if name not in parts}


async def test_many_episodes_at_once_are_the_episodes_alone() -> None:
    scripts = [(HOP_1, HOP_2, ANSWER), (HOP_2, "x", ANSWER, ANSWER), ("<rerank/>", HOP_1, ANSWER, "x")]
    alone = [(await play(*script, verdicts=[(False, 0.5), (True, 1.0)], max_turns=3)).episode for script in scripts]
    together = await asyncio.gather(
        *(play(*script, verdicts=[(False, 0.5), (True, 1.0)], max_turns=3) for script in scripts * 5)
    )
    for i, played in enumerate(together):
        assert played.episode.branches == alone[i % 3].branches
        assert played.episode.metrics == alone[i % 3].metrics
