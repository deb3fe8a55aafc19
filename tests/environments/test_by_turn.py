"""What rewards say of single turns is what the agent did in them: its own records, read by the terms."""

from __future__ import annotations

import pytest

from agentgrpo.rewards.registry import TERMS, TurnTerm
from tests.environments.scripted import HOP_1, HOP_2, ReversingReranker, play

TWO = (
    '<searches><query retriever="vdb" rerank="true">all</query>'
    '<query retriever="web" rerank="false">chatter</query></searches>'
)


@pytest.mark.parametrize(
    ("name", "weights", "expected"),
    [
        ("per_search", {"weight": -0.5}, [-0.5, 0.0, -0.5, -0.5, 0.0, 0.0]),
        ("unnecessary_search", {"weight": -0.5}, [0.0, 0.0, -0.5, -0.5, 0.0, 0.0]),
        ("duplicate_query", {"weight": -0.5}, [0.0, -0.5, 0.0, 0.0, 0.0, 0.0]),
        ("budget", {"weight": -0.5, "threshold": 0.5, "max_search_rounds": 4}, [0.0, 0.0, -0.5, 0.0, 0.0, 0.0]),
        ("retriever_cost", {"web": -0.5, "vdb": -0.125}, [-0.5, 0.0, -0.125, -0.625, 0.0, 0.0]),
        ("rerank_cost", {"weight": -0.5}, [-0.5, 0.0, 0.0, -0.5, -0.5, 0.0]),
        ("evidence_gain", {"weight": 0.5}, [0.25, 0.0, 0.0, 0.125, 0.0, 0.0]),
        ("artist_tools", {"weight": 1.0}, [1.0, -0.5, 2 / 3 - 0.5, 0.8 - 2 / 3, 5 / 6 - 0.8, 0.0]),
    ],
)
async def test_terms_by_turn_add_up_over_a_real_episode(
    name: str, weights: dict[str, float], expected: list[float]
) -> None:
    """Two hops with a repetition between them, two queries at once, a rerank of everything, the answer."""
    played = await play(
        HOP_1, HOP_1, HOP_2, TWO, "<rerank/>", "<answer>Roka</answer>",
        verdicts=[(False, 0.5), (False, 0.25), (True, 0.5)],
        reranker=ReversingReranker(),
        deduplicate_search_results=False,
    )  # fmt: skip
    term = TERMS[name](**weights)
    assert isinstance(term, TurnTerm)
    assert [x + 0.0 for x in term.per_turn(played.episode)] == pytest.approx(expected, abs=1e-15)
    assert sum(expected) == pytest.approx(term(played.episode, 1.0), abs=1e-15)
