"""Several queries in a turn, subquestions, plans."""

import pytest

from agentgrpo.core.errors import RetrieverError
from agentgrpo.engines.base import SamplingParams
from agentgrpo.retrieval.base import TaskRetrievers
from tests import builders
from tests.environments.scripted import (
    ANSWER,
    DECIDED,
    HOP_1,
    HOP_2,
    SHOWN_1,
    SHOWN_2,
    ScriptedEngine,
    ScriptedJudge,
    ScriptedRetriever,
    play,
    renderer,
)
from tests.runners import search_runner


async def test_queries_of_one_turn_are_sent_together_and_labelled_by_place() -> None:
    turn = "<searches>\nborn Castin\nfounded Velmor\nBORN castin\nnothing\nchatter\n</searches>"
    played = await play(turn, ANSWER)
    assert played.vdb.calls == [("born Castin", 5), ("founded Velmor", 5), ("nothing", 5), ("chatter", 5)]
    assert played.vdb.most_live == 4
    assert played.told[0] == (
        "\n<information>\n[R1Q1D1] Castin was born in Roka.\n[R1Q1D2] Tours of Velmor are popular.\n"
        "[R1Q2D1] (Title: Velmor) Velmor was founded by Castin. URL: http://x.test/velmor#history\n"
        "Query 4: No results.\nQuery 5: Nothing new, see [R1Q1D2].\n</information>\n"
        "<search_feedback>\nQuery 3: Already searched, see [R1Q1D1] [R1Q1D2].\n</search_feedback>\n"
    )
    m = played.episode.metrics
    assert (m["search_rounds"], m["search_queries"], m["vdb_searches"]) == (1.0, 4.0, 4.0)
    assert (m["repeated_search_queries"], m["repeated_query_ratio"], m["budget_used_ratio"]) == (1.0, 0.2, 0.8)
    assert played.turns == [(0, "search", 3), (1, None, 0)]


async def test_queries_go_each_to_its_retriever() -> None:
    turn = '<searches><query retriever="web">founded Velmor</query><query>born Castin</query></searches>'
    played = await play(turn, ANSWER)
    assert played.web is not None
    assert (played.web.calls, played.vdb.calls) == ([("founded Velmor", 5)], [("born Castin", 5)])
    m = played.episode.metrics
    assert (m["web_searches"], m["vdb_searches"], m["search_rounds"]) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(("task_ids", "own"), [({"t7"}, True), ({"t8"}, False)])
async def test_a_task_of_training_is_searched_for_in_documents_of_its_own(task_ids: set[str], own: bool) -> None:
    training = ScriptedRetriever({"founded Velmor": [builders.passage("t", "Told in training.")]})
    retrievers = TaskRetrievers(task_ids=frozenset(task_ids), retrievers={"vdb": training})
    played = await play("<search>founded Velmor</search>", ANSWER, training_retrievers=retrievers)
    assert ("Told in training." in played.told[0]) is own
    assert (len(training.calls), len(played.vdb.calls)) == ((1, 0) if own else (0, 1))


async def test_no_more_requests_live_than_allowed() -> None:
    turn = "<searches>" + "\n".join("abcdefg") + "</searches>"
    played = await play(turn, max_turns=1, max_search_limit=7, max_concurrent_queries=3)
    assert (played.vdb.most_live, len(played.vdb.calls)) == (3, 7)


async def test_a_failing_query_ends_the_episode_after_the_others_have_ended() -> None:
    vdb = ScriptedRetriever({"b": RetrieverError("first"), "c": RetrieverError("second")})
    agent = search_runner(
        engine=ScriptedEngine(["<searches>a\nb\nc</searches>"]),
        renderer=renderer(),
        retrievers={"vdb": vdb, "web": vdb},
        evidence=ScriptedJudge(),
    )
    with pytest.raises(RetrieverError, match="first"):
        await agent.run(builders.task(), sample_index=0, stream="s", sampling=SamplingParams(max_tokens=500))
    assert (len(vdb.calls), vdb.live) == (3, 0)


async def test_subquestions_raise_the_budget_and_are_covered_by_queries_that_find_something() -> None:
    plan = "<subquestions>\nwho founded it?\nT9: where?\nwhy?\n</subquestions>"
    turn = "<searches>[T1] founded Velmor\n[T9] nothing\nborn Castin\nx\ny</searches>"
    played = await play(plan + turn, "<search>[T9] born Castin again</search>", ANSWER, max_search_limit=2)
    m = played.episode.metrics
    assert m["effective_search_limit"] == 4.0  # 2 + 1·(3 − 1)
    assert (m["search_queries"], m["search_limit_hits"]) == (4.0, 2.0)
    assert (m["active_subquestions"], m["subquestion_coverage_ratio"]) == (3.0, 1 - 2 / 3)
    assert played.told[0] == (
        "\n<information>\n[R1Q1D1] (Title: Velmor) Velmor was founded by Castin. URL: http://x.test/velmor#history\n"
        "[R1Q1D2] Tours of Velmor are popular.\nQuery 2: No results.\n[R1Q3D1] Castin was born in Roka.\n"
        "Query 4: No results.\n</information>\n"
        "<search_feedback>\nQuery 5: The search limit is reached. Answer now.\n</search_feedback>\n"
        "<subquestions_feedback>\nNot searched successfully yet:\nT9: where?\nT3: why?\n</subquestions_feedback>\n"
    )
    assert played.judge.rounds[0][0].subquestion == "T1"
    assert played.judge.rounds[0][2].subquestion is None


async def test_a_rejection_lists_the_uncovered_subquestions() -> None:
    plan = "<subquestions>who?\nwhere?</subquestions><search>[T1] founded Velmor</search>"
    played = await play(plan, "<answer>x</answer>", max_turns=2, verdicts=[(False, 0.5)], force_answer_on_deadend=False)
    assert played.told[1] == (
        "\n<answer_feedback>\nThe evidence is insufficient. Search again.\nNot searched successfully yet:\n"
        "T2: where?\n</answer_feedback>\n"
    )


async def test_a_turn_that_only_plans_is_no_format_error() -> None:
    plan = "<subquestions>who?</subquestions>"
    turns = [plan, "<search_decision>search</search_decision>", DECIDED]
    played = await play(*turns, max_turns=3, max_consecutive_format_errors=1)
    uncovered = "Not searched successfully yet:\nT1: who?\n"
    assert played.told == [
        f"\n<subquestions_feedback>\nSearch now.\n{uncovered}</subquestions_feedback>\n",
        f"\n<decision_feedback>\nSearch now.\n{uncovered}</decision_feedback>\n",
        f"\n<decision_feedback>\nAnswer now.\n{uncovered}</decision_feedback>\n",
    ]
    assert played.episode.metrics["format_error_turns"] == 0.0


async def test_the_evaluation_is_shown_where_asked_for() -> None:
    played = await play(HOP_1, HOP_2, ANSWER, verdicts=[(False, 0.5), (True, 0.5)], show_search_evaluation=True)
    assert played.told == [
        SHOWN_1 + "<search_evaluation>\nThe evidence is insufficient.\n</search_evaluation>\n",
        SHOWN_2 + "<search_evaluation>\nThe evidence is sufficient.\n</search_evaluation>\n",
    ]
