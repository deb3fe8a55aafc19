import pytest

from agentgrpo.environments.search.state import Ruling, effective_search_limit, on_plateau, rule_on_answer

BARE = {
    "decided_to_answer": False,
    "search_rounds": 0,
    "num_subquestions": 0,
    "evidence_sufficient": False,
    "rejections": 0,
    "max_rejections": 3,
    "require_evidence": True,
    "allow_direct": True,
}


@pytest.mark.parametrize(
    "changes, ruling",
    [
        ({}, Ruling.REJECT),
        ({"decided_to_answer": True}, Ruling.DIRECT),
        ({"decided_to_answer": True, "allow_direct": False}, Ruling.REJECT),
        ({"decided_to_answer": True, "search_rounds": 1}, Ruling.REJECT),
        ({"decided_to_answer": True, "num_subquestions": 1}, Ruling.REJECT),
        ({"search_rounds": 1, "evidence_sufficient": True}, Ruling.ACCEPT),
        ({"search_rounds": 1, "evidence_sufficient": True, "rejections": 3}, Ruling.ACCEPT),
        ({"require_evidence": False}, Ruling.ACCEPT),
        ({"decided_to_answer": True, "require_evidence": False}, Ruling.DIRECT),
        ({"search_rounds": 1, "rejections": 2}, Ruling.REJECT),
        ({"search_rounds": 1, "rejections": 3}, Ruling.FORCE),
        ({"max_rejections": 0}, Ruling.FORCE),
    ],
)
def test_rulings(changes: dict[str, object], ruling: Ruling) -> None:
    assert rule_on_answer(**(BARE | changes)) is ruling  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "base, per_subquestion, cap, num, limit",
    [(5, 1, 10, 0, 5), (5, 1, 10, 1, 5), (5, 1, 10, 3, 7), (5, 2, 10, 9, 10), (12, 1, 10, 3, 12), (5, 0, 10, 9, 5)],
)
def test_effective_search_limit(base: int, per_subquestion: int, cap: int, num: int, limit: int) -> None:
    given = effective_search_limit(base=base, per_subquestion=per_subquestion, cap=cap, num_subquestions=num)
    assert given == limit


@pytest.mark.parametrize(
    "gain, sufficient, min_gain, requires, stops",
    [
        (0.04, True, 0.05, True, True),
        (0.05, True, 0.05, True, False),
        (0.0, False, 0.05, True, False),
        (0.0, False, 0.05, False, True),
        (0.0, True, None, True, False),
    ],
)
def test_plateau(gain: float, sufficient: bool, min_gain: float | None, requires: bool, stops: bool) -> None:
    assert on_plateau(gain=gain, sufficient=sufficient, min_gain=min_gain, requires_sufficient=requires) is stops
