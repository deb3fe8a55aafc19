"""Every way an episode ends."""

import pytest

from agentgrpo.core.types import Exit, Outcome, Piece
from tests import builders
from tests.environments.scripted import (
    ANSWER,
    CASTIN,
    HOP_1,
    HOP_2,
    LAST_CHANCE,
    LIMIT,
    NO_ACTION,
    NOTHING,
    PROMPT,
    ROWS,
    SHOWN_1,
    SHOWN_2,
    play,
    renderer,
)


async def test_exit_max_turns_without_evidence_asks_for_no_answer() -> None:
    played = await play("<search>x</search>", "<search>y</search>", max_turns=2)
    assert played.told == ["\n<information>\nNo results.\n</information>\n"] * 2
    assert played.episode.exit is Exit.MAX_TURNS
    assert (played.episode.answer, played.turns) == (None, [(0, "search", 0), (1, "search", 0)])
    assert played.episode.metrics == NOTHING | {
        "search_rounds": 2.0,
        "rounds_used": 2.0,
        "search_queries": 2.0,
        "vdb_searches": 2.0,
        "vdb_served": 2.0,
        "vdb_calls": 2.0,
        "evidence_insufficient_rounds": 2.0,
        "effective_search_limit": 2.0,
        "budget_used_ratio": 1.0,
        "search_budget_exhausted_without_answer": 1.0,
        "exit_max_turns": 1.0,
        "tool_turns": 2.0,
    }


async def test_a_forced_final_answer_is_one_further_turn() -> None:
    played = await play(HOP_1, "<answer> Tor</answer>", max_turns=1, verdicts=[(False, 0.5)])
    assert played.told == [SHOWN_1, LAST_CHANCE]
    assert [k.turn for k in played.engine.keys] == [0, 1]
    assert (played.episode.exit, played.episode.answer) == (Exit.ANSWERED, "Tor")
    assert played.turns == [(0, "search", 2), (1, None, 0)]
    m = played.episode.metrics
    assert (m["forced_final_answer"], m["answer_when_evidence_insufficient"], m["answer_allowed"]) == (1.0, 1.0, 0.0)
    assert m["search_budget_exhausted_without_answer"] == 0.0


async def test_a_forced_final_answer_on_good_evidence_is_allowed() -> None:
    m = (await play(HOP_1, ANSWER, max_turns=1)).episode.metrics
    assert (m["forced_final_answer"], m["answer_when_evidence_insufficient"], m["answer_allowed"]) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize("last, errors", [(HOP_2, 0.0), ("well", 1.0)])
async def test_a_last_turn_without_an_answer_ends_as_max_turns(last: str, errors: float) -> None:
    played = await play(HOP_1, last, max_turns=1)
    assert (played.episode.exit, played.episode.answer, played.vdb.calls) == (Exit.MAX_TURNS, None, [])
    assert played.episode.metrics["forced_final_answer"] == 0.0
    assert played.episode.metrics["format_error_turns"] == errors


async def test_no_answer_is_asked_for_where_that_is_switched_off() -> None:
    played = await play(HOP_1, max_turns=1, force_answer_on_deadend=False)
    assert (played.episode.exit, played.told) == (Exit.MAX_TURNS, [SHOWN_1])


async def test_exit_search_limit_after_being_told() -> None:
    played = await play(HOP_1, HOP_2, "<search>x</search>", max_search_limit=1, force_answer_on_deadend=False)
    assert played.told == [SHOWN_1, LIMIT, LIMIT]
    assert (played.episode.exit, played.vdb.calls, played.turns) == (Exit.SEARCH_LIMIT, [], [(0, "search", 2)])
    m = played.episode.metrics
    assert (m["search_limit_hits"], m["effective_search_limit"], m["budget_used_ratio"]) == (2.0, 1.0, 1.0)
    assert (m["search_budget_exhausted_without_answer"], m["tool_turns"], m["search_rounds"]) == (1.0, 3.0, 1.0)
    refused = played.episode.tool_records[1]
    assert (refused.outcome, refused.detail, refused.turn) == (Outcome.INVALID_ARGS, "over the search limit", 1)


async def test_a_spent_search_limit_is_a_dead_end_where_an_answer_is_asked_for() -> None:
    played = await play(HOP_1, HOP_2, HOP_2, ANSWER, max_search_limit=1)
    assert played.told == [SHOWN_1, LIMIT, LIMIT, LAST_CHANCE]
    assert (played.episode.exit, played.episode.metrics["forced_final_answer"]) == (Exit.ANSWERED, 1.0)


async def test_an_answer_after_the_limit_was_told_is_an_answer() -> None:
    played = await play(HOP_1, HOP_2, ANSWER, max_search_limit=1)
    assert (played.episode.exit, played.episode.metrics["forced_final_answer"]) == (Exit.ANSWERED, 0.0)


async def test_exit_format_error_limit_without_a_search() -> None:
    played = await play("a", "b", "<search>c", auto_search_on_deadend=False)
    assert played.told == [NO_ACTION, NO_ACTION]
    assert played.episode.metrics == NOTHING | {"format_error_turns": 3.0, "exit_format_error_limit": 1.0}
    assert played.turns == []


async def test_at_the_limit_of_format_errors_the_question_is_searched_once() -> None:
    question = "Where was\nthe founder born?"
    played = await play(
        "a",
        "b",
        "c",
        "d",
        "e",
        "f",
        vdb={"Where was": (CASTIN,)},
        question=question,
        max_turns=9,
        verdicts=[(False, 0.5)],
    )
    shown = "\n<information>\n[R1Q1D1] Castin was born in Roka.\n</information>\n"
    assert played.told == [NO_ACTION, NO_ACTION, shown, NO_ACTION, NO_ACTION]
    assert played.vdb.calls == [("Where was", 5)]
    assert played.turns == [(2, "search", 1)]
    m = played.episode.metrics
    assert played.episode.exit is Exit.FORMAT_ERROR_LIMIT
    assert (m["format_error_turns"], m["search_rounds"], m["vdb_searches"], m["tool_turns"]) == (6.0, 1.0, 1.0, 0.0)


async def test_format_errors_count_only_in_a_row() -> None:
    played = await play("a", "b", HOP_1, "c", "d", HOP_2, ANSWER, max_turns=9, verdicts=[(False, 0.5), (True, 0.5)])
    assert played.episode.exit is Exit.ANSWERED
    assert played.episode.metrics["format_error_turns"] == 4.0


async def test_exit_no_action_on_sufficient_evidence() -> None:
    played = await play(HOP_1, "I wonder")
    assert (played.episode.exit, played.told) == (Exit.NO_ACTION, [SHOWN_1])
    assert played.episode.metrics["format_error_turns"] == 1.0


async def test_exit_no_action_when_rejections_are_used_up() -> None:
    played = await play("<answer>x</answer>", "hm", max_answer_rejections=1)
    assert played.episode.exit is Exit.NO_ACTION


async def test_exit_context_overflow_drops_the_observation_whole() -> None:
    size = len(renderer().open([]))  # "\n"
    opening = len(
        (await play(ANSWER, require_sufficient_evidence_before_answer=False)).episode.branches[0].segments[0].token_ids
    )
    action, shown = len(renderer().encode_action(HOP_1)), len(renderer().observe([Piece(SHOWN_1, True)]))
    fits = opening + action + shown + 1
    assert size == 1

    played = await play(HOP_1, max_context=fits - 1)
    assert played.episode.exit is Exit.CONTEXT_OVERFLOW
    assert [s.text for s in played.episode.branches[0].segments] == [PROMPT, HOP_1]
    assert played.episode.retrieved_ids == ()  # found, but never shown
    assert played.turns == [(0, "search", 2)]

    played = await play(HOP_1, ANSWER, max_context=fits)
    assert [s.text for s in played.episode.branches[0].segments][:3] == [PROMPT, HOP_1, SHOWN_1]
    # one token of room: the next turn is cut to it, and no feedback fits
    assert [s.max_tokens for s in played.engine.samplings] == [fits - opening, 1]
    assert played.episode.exit is Exit.NO_ACTION


async def test_a_prompt_that_does_not_fit_overflows_before_the_first_turn() -> None:
    played = await play(max_context=len(PROMPT))
    assert played.episode.metrics == NOTHING | {"exit_context_overflow": 1.0}
    assert played.engine.released == [("train/3", "t7", 2)]


async def test_a_plateau_stops_searching_and_asks_for_the_answer() -> None:
    played = await play(HOP_1, HOP_2, ANSWER, verdicts=[(True, 0.5), (True, 0.53)], evidence_plateau_min_gain=0.05)
    plateau = "\n<search_feedback>\nThe evidence no longer grows. Answer now.\n</search_feedback>\n"
    assert played.told == [SHOWN_1, SHOWN_2, plateau]
    m = played.episode.metrics
    assert played.episode.exit is Exit.ANSWERED
    assert (m["early_stops"], m["plateau_early_stop"], m["forced_final_answer"], m["answer_allowed"]) == (1, 1, 0, 1)


async def test_no_answer_after_a_plateau_ends_the_search() -> None:
    turns = (HOP_1, HOP_2, "<search>x</search>")
    played = await play(*turns, verdicts=[(True, 0.5)], evidence_plateau_min_gain=0.05)
    assert (played.episode.exit, len(played.vdb.calls)) == (Exit.SEARCH_LIMIT, 1)


@pytest.mark.parametrize(
    "verdicts, options",
    [
        ([(True, 0.5), (True, 0.55)], {}),
        ([(False, 0.5), (False, 0.5), (True, 0.9)], {}),
        ([(True, 0.5), (True, 0.5)], {"evidence_plateau_min_gain": None}),
    ],
)
async def test_no_plateau(verdicts: list[tuple[bool, float]], options: dict[str, object]) -> None:
    more = "<search>chatter more</search>"
    vdb = ROWS | {"chatter more": (builders.passage("m", "More of it."),)}
    options = {"evidence_plateau_min_gain": 0.05} | options
    played = await play(HOP_1, HOP_2, more, ANSWER, verdicts=[*verdicts, (True, 1.0)][:3], vdb=vdb, **options)
    assert (played.episode.exit, played.episode.metrics["early_stops"]) == (Exit.ANSWERED, 0.0)


async def test_a_plateau_without_any_evidence_is_no_reason_to_stop() -> None:
    options = {"evidence_plateau_min_gain": 0.05, "plateau_requires_sufficient": False}
    played = await play("<search>x</search>", HOP_1, ANSWER, **options)
    assert played.episode.exit is Exit.ANSWERED


async def test_a_plateau_in_the_last_turn_is_only_the_last_turn() -> None:
    played = await play(HOP_1, HOP_2, ANSWER, max_turns=2, verdicts=[(True, 0.5)], evidence_plateau_min_gain=0.05)
    assert played.told == [SHOWN_1, SHOWN_2, LAST_CHANCE]
    assert (played.episode.metrics["early_stops"], played.episode.metrics["forced_final_answer"]) == (0.0, 1.0)
