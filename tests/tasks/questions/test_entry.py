"""What makes two questions the same."""

from __future__ import annotations

import pytest

from agentgrpo.tasks.questions.formats import words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Who founded  Orm?", "who founded orm"),
        ("“Who” – founded: Orm…", "who founded orm"),
        ("``Who's'' he", "who s he"),
        ("a well-known town", "a well known town"),
        ("a\u200bb\nc", "a b c"),
        ("किसने बसाया?", "किसने बसाया"),
        ("ＯＲＭ", "orm"),
        ("What is 7 - 5?", "what is 7 - 5"),
        ("What is 7\u22125?", "what is 7 - 5"),
        ("-5", "- 5"),
        ("1914–1918", "1914 - 1918"),
        ("covid-19", "covid 19"),
        ("7*5 ", "7 * 5"),
        ("7 × 5", "7 * 5"),
        ("7/5 and/or 7÷5", "7 / 5 and or 7 / 5"),
        ("3 < 4", "3 < 4"),
        ("2^3", "2 ^ 3"),
        ("C++, C# or C", "c + + c # or c"),
        ("A* search", "a * search"),
        ("#1 is 5 %", "# 1 is 5 %"),
        ("€5", "€ 5"),
        ("the U.S. of A.", "the us of a"),
        ("J. K. Rowling, J.K. Rowling", "jk rowling jk rowling"),
        ("on page 1.5", "on page 1 5"),
    ],
)
def test_the_words_of_a_question(text: str, words: str) -> None:
    assert words_of(text) == words.split()
