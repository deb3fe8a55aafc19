"""The gate: which answers are accepted."""

import pytest

from agentgrpo.core.types import Exit
from tests import builders
from tests.environments.scripted import ANSWER, DECIDED, HOP_1, NOTHING, SHOWN_1, play


async def test_a_direct_answer() -> None:
    played = await play(DECIDED + "<answer> Roka [R1Q1D1]</answer>")
    assert (played.episode.answer, played.episode.citations, played.turns) == ("Roka", (), [(0, None, 0)])
    assert played.episode.metrics == NOTHING | {"direct_answers": 1.0, "answer_allowed": 1.0, "exit_answered": 1.0}


@pytest.mark.parametrize(
    "first, options",
    [
        ("<answer>x</answer>", {}),
        (DECIDED + "<answer>x</answer>", {"allow_internal_knowledge_answer": False}),
        ("<search_decision>search</search_decision><answer>x</answer>", {}),
    ],
)
async def test_an_answer_before_any_search_is_rejected(first: str, options: dict[str, object]) -> None:
    played = await play(first, HOP_1, ANSWER, **options)
    assert played.told[0] == "\n<decision_feedback>\nSearch before you answer.\n</decision_feedback>\n"
    assert (played.episode.exit, played.episode.metrics["answer_rejections"]) == (Exit.ANSWERED, 1.0)


async def test_a_direct_answer_with_a_subquestion_is_rejected() -> None:
    played = await play(DECIDED + "<subquestions>who?</subquestions><answer>x</answer>", max_turns=1)
    feedback = "Search before you answer.\nNot searched successfully yet:\nT1: who?"
    assert played.told == [f"\n<decision_feedback>\n{feedback}\n</decision_feedback>\n"]
    m = played.episode.metrics
    assert (m["active_subquestions"], m["subquestion_coverage_ratio"], m["direct_answers"]) == (1.0, 0.0, 0.0)


async def test_insufficient_evidence_rejects_then_forces() -> None:
    answers = ["<answer>a</answer>", "<answer>b</answer>", "<answer> c [R1Q1D1]</answer>"]
    played = await play(HOP_1, *answers, verdicts=[(False, 0.5)], max_answer_rejections=2)
    rejected = "\n<answer_feedback>\nThe evidence is insufficient. Search again.\n</answer_feedback>\n"
    assert played.told == [SHOWN_1, rejected, rejected]
    assert (played.episode.answer, played.episode.exit) == ("c", Exit.ANSWERED)
    assert played.turns == [(0, "search", 2), (3, None, 0)]
    assert played.episode.metrics == NOTHING | {
        "search_rounds": 1.0,
        "rounds_used": 1.0,
        "search_queries": 1.0,
        "web_searches": 1.0,
        "web_calls": 1.0,
        "web_served": 1.0,
        "web_fraction": 1.0,
        "rerank_requested": 1.0,
        "rerank_skipped": 1.0,
        "evidence_insufficient_rounds": 1.0,
        "evidence_score_final": 0.5,
        "evidence_gain_total": 0.5,
        "budget_used_ratio": 0.2,
        "answer_rejections": 2.0,
        "answer_when_evidence_insufficient": 1.0,
        "citation_count": 1.0,
        "exit_answered": 1.0,
        "tool_turns": 1.0,
    }


async def test_without_the_gate_every_answer_is_accepted() -> None:
    m = (await play(ANSWER, require_sufficient_evidence_before_answer=False)).episode.metrics
    assert m == NOTHING | {"answer_allowed": 1.0, "answer_when_evidence_insufficient": 1.0, "exit_answered": 1.0}


async def test_a_round_that_shows_nothing_changes_no_evidence() -> None:
    played = await play(HOP_1, "<search>x</search>", ANSWER, verdicts=[(True, 0.75), (False, 0.0)])
    assert played.episode.exit is Exit.ANSWERED
    assert len(played.judge.rounds) == 1
    m = played.episode.metrics
    assert (m["final_evidence_sufficient"], m["evidence_score_final"], m["search_quality_score"]) == (1.0, 0.75, 0.5)
    assert (m["evidence_sufficient_rounds"], m["evidence_insufficient_rounds"]) == (1.0, 1.0)


async def test_evidence_gain_sums_the_rises_from_round_to_round() -> None:
    turns = [f"<search>{q}</search>" for q in ("a", "b", "c", "d")]
    vdb = {q: (builders.passage(q, f"text {q}"),) for q in "abcd"}
    played = await play(
        *turns,
        vdb=vdb,
        max_turns=4,
        force_answer_on_deadend=False,
        verdicts=[(False, 0.5), (True, 0.25), (False, 1.0), (False, 1.0)],
    )
    m = played.episode.metrics
    assert (m["evidence_gain_total"], m["evidence_score_final"], m["final_evidence_sufficient"]) == (1.25, 1.0, 0.0)
