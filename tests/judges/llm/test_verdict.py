"""A verdict is one JSON object exactly as asked for."""

from __future__ import annotations

import pytest

from agentgrpo.core.errors import JudgeError
from agentgrpo.judges.llm.verdict import Opinion, read_verdict


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"nonce": "n1", "score": 0.5, "reason": "partly"}', Opinion((0.5,), "partly")),
        (' \n{"score": 1, "reason": "", "nonce": "n1"}\n', Opinion((1.0,), "")),
        ('{"nonce": "n1", "score": 0, "reason": "' + "x" * 600 + '"}', Opinion((0.0,), "x" * 500)),
    ],
)
def test_verdicts(text: str, expected: Opinion) -> None:
    assert read_verdict(text, "n1") == expected


def test_a_verdict_on_two() -> None:
    text = '{"nonce": "n1", "first": 1, "second": 0.25, "reason": "r"}'
    assert read_verdict(text, "n1", ("first", "second")) == Opinion((1.0, 0.25), "r")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not one JSON object"),
        ("1.0", "its keys"),
        ("[]", "its keys"),
        ("null", "its keys"),
        ("The answer is right. Score: 1", "not one JSON object"),
        ('```json\n{"nonce": "n1", "score": 1, "reason": ""}\n```', "not one JSON object"),
        ('{"nonce": "n1", "score": 1, "reason": ""} Yes!', "not one JSON object"),
        ('{"nonce": "n1", "score": 1, "reason": ""}{"nonce": "n1", "score": 1, "reason": ""}', "not one JSON object"),
        ('{"nonce": "n2", "score": 1, "reason": ""}', "nonce is not the one"),
        ('{"nonce": ["n1"], "score": 1, "reason": ""}', "nonce is not the one"),
        ('{"score": 1, "reason": ""}', "its keys"),
        ('{"nonce": "n1", "score": 1}', "its keys"),
        ('{"nonce": "n1", "score": 1, "reason": "", "more": 1}', "its keys"),
        ('{"nonce": "n1", "score": 0, "score": 1, "reason": ""}', "stands twice"),
        ('{"nonce": "n1", "score": true, "reason": ""}', "a number from 0 to 1"),
        ('{"nonce": "n1", "score": "1", "reason": ""}', "a number from 0 to 1"),
        ('{"nonce": "n1", "score": null, "reason": ""}', "a number from 0 to 1"),
        ('{"nonce": "n1", "score": 1.01, "reason": ""}', "a number from 0 to 1"),
        ('{"nonce": "n1", "score": -0.1, "reason": ""}', "a number from 0 to 1"),
        ('{"nonce": "n1", "score": NaN, "reason": ""}', "NaN is no JSON number"),
        ('{"nonce": "n1", "score": 1e999, "reason": ""}', "a number from 0 to 1"),
        ('{"nonce": "n1", "score": 1, "reason": 3}', "the reason must be a text"),
        ("[" * 100_000, "not one JSON object"),
        ('{"nonce": "n1", "score": ' + "9" * 5000 + ', "reason": ""}', "not one JSON object"),
    ],
)
def test_anything_else_is_refused(text: str, problem: str) -> None:
    with pytest.raises(JudgeError, match=problem) as raised:
        read_verdict(text, "n1")
    assert raised.value.kind == "bad_verdict"
    assert len(str(raised.value)) < 400
