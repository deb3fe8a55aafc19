"""What came of an episode whose task says which passages prove the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentgrpo.core.types import Citation, Outcome, ToolRecord
from agentgrpo.environments.search.metrics import GOLD, SEARCH_FIGURES, gold_metrics
from tests.builders import episode, task
from tests.environments.scripted import ANSWER, HOP_1, HOP_2, play


def search(turn: int, *ids: str, outcome: Outcome = Outcome.SUCCESS) -> ToolRecord:
    return ToolRecord(name="search", arguments={}, outcome=outcome, turn=turn, result_ids=ids)


def cite(*ids: str) -> tuple[Citation, ...]:
    return tuple(Citation(doc_id=id_, marker=f"[R1Q1D{i}]", text="") for i, id_ in enumerate(ids, 1))


TWO_HOPS = replace(
    episode(task(supporting=["v", "c"]), citations=cite("c", "n"), retrieved=("v", "n", "c")),
    tool_records=(search(0, "v", "n"), search(0, "v"), search(1, outcome=Outcome.INVALID_ARGS), search(2, "n", "c")),
)


def test_two_hops_by_hand() -> None:
    """The first round brings one of the two, the second the other; one of two citations is supporting."""
    assert gold_metrics(TWO_HOPS) == {
        "has_gold": 1.0,
        "retrieval_recall": 1.0,
        "retrieval_recall_round_1": 0.5,
        "retrieval_recall_round_2": 1.0,
        "citation_recall": 0.5,
        "citation_precision": 0.5,
        "has_gold_and_citations": 1.0,
        "has_gold_and_answer": 1.0,
        "cites_unsupported": 1.0,
    }
    assert tuple(gold_metrics(TWO_HOPS)) == GOLD


def test_an_answer_that_cites_nothing_has_no_precision() -> None:
    found = gold_metrics(replace(TWO_HOPS, citations=()))
    assert (found["has_gold_and_citations"], found["citation_recall"], found["cites_unsupported"]) == (0.0, 0.0, 0.0)
    assert "precision" not in SEARCH_FIGURES.shares(found)["citations"]
    unanswered = gold_metrics(replace(TWO_HOPS, citations=(), answer=None))
    assert SEARCH_FIGURES.shares(unanswered)["citations"] == {"recall": 0.0}


@pytest.mark.parametrize("supporting", [None, [], (), "v", 3])
def test_without_gold_nothing_is_said(supporting: object) -> None:
    of = replace(TWO_HOPS, task=task(supporting=supporting))
    assert gold_metrics(of) == SEARCH_FIGURES.ratio_parts(of) == SEARCH_FIGURES.shares({}) == {}


async def test_an_episode_is_scored_by_its_gold() -> None:
    played = await play(HOP_1, HOP_2, ANSWER, metadata={"supporting": ["v1", "c1"]})
    assert played.episode.outcome == gold_metrics(played.episode)
    assert SEARCH_FIGURES.shares(SEARCH_FIGURES.ratio_parts(played.episode)) == {
        "citations": {"precision": 1.0, "recall": 0.5, "unsupported": 0.0},
        "retrieval": {"recall": 1.0, "recall_round_1": 0.5, "recall_round_2": 1.0},
    }
    assert (await play(HOP_1, HOP_2, ANSWER)).episode.outcome == {}
