"""Multiple choice: the letter must be the answer, not merely occur in it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentgrpo.core.errors import DataError, JudgeError
from agentgrpo.judges.answers import Choice
from agentgrpo.judges.composed import refuse_unjudged
from tests.builders import task

PLACES = ("Castin", "a boat", "The Old Mill", "Orlin's house")


async def grades(references: Sequence[str], options: Sequence[str], *answers: str) -> list[float]:
    of = task("Where?", *references, options=list(options))
    return [v.score for v in await Choice().grade(of, answers)]


RIGHT = (
    *("C", "c", "(C)", "(c)", "C.", "C)", "c:", "(C).", " C \n", "**C**", '"C"', "`c`", "\uff23"),
    *("C) The Old Mill", "(c) old mill!", "C The Old Mill", "C. the old mill.", "C)old mill", "the OLD mill"),
    *("The answer is C", "the answer is (c).", "Answer: C", "Final answer: C.", "My final answer is: option C"),
    *("old mill", "Option C", "The correct choice is C) The Old Mill", "The answer is the Old Mill."),
)
WRONG = (
    *("A", "(b)", "D.", "E", "", " ", "?", "Castin", "unknown"),
    *("B or C", "A B C D", "A, B, C", "ABC", "A. B. C.", "C, D", "C) Castin", "B) the old mill", "not C", "C is wrong"),
    *("A friend of C", "a mill", "See C", "Castin", "I think that it is C", "The Old Mill or Castin", "The answer is"),
    *("The answer is B or C", "The answer is not C", "option", "mill", "the old mill, the old mill"),
)


@pytest.mark.parametrize("reference", ["C", "(c)", "The Old Mill", "C) The Old Mill"])
async def test_the_option_is_named_by_letter_or_text(reference: str) -> None:
    found = await grades([reference], PLACES, *RIGHT, *WRONG)
    assert dict(zip([*RIGHT, *WRONG], found, strict=True)) == dict.fromkeys(RIGHT, 1.0) | dict.fromkeys(WRONG, 0.0)


async def test_a_is_an_option_too_and_an_article_is_none() -> None:
    assert await grades(["A"], PLACES, "A", "a", "(a)", "The A", "A boat", "a Castin") == [1, 1, 1, 0, 0, 1]
    assert await grades(["B"], PLACES, "A boat", "boat", "b", "A) boat") == [1, 1, 1, 0]
    assert await grades(["A. Smith"], ["x", "A. Smith"], "a. smith", "b", "A. Smith", "A", "A: Smith") == [
        1,
        1,
        1,
        0,
        0,
    ]


async def test_options_may_come_with_their_letters() -> None:
    labelled = ("(a) I like it", "(b) C. Orlin", "c) A", "D. Orlin")
    # what has another's letter is a text
    assert await grades(["(b)"], labelled, "b", "(b) C. Orlin", "C. Orlin", "b) Orlin", "C", "D") == [1, 1, 1, 0, 0, 0]
    assert await grades(["I like it"], labelled, "(a)", "I like it", "(a) I like it.", "c") == [1, 1, 1, 0]


async def test_a_letter_that_the_options_have_is_a_letter() -> None:
    assert await grades(["B"], ["C", "D"], "b", "D", "C", "B") == [1, 1, 0, 1]
    assert await grades(["B"], ["B", "A"], "B", "A", "b) A") == [1, 0, 1]


async def test_equal_options_are_equally_right_and_any_of_several_references_will_do() -> None:
    assert await grades(["B"], ["x", "boat", "boat"], "boat", "b", "c") == [1, 1, 0]
    assert await grades(["boat"], ["x", "boat", "boat"], "boat", "b", "c") == [1, 1, 1]
    assert await grades(["A", "D"], PLACES, "a", "b", "d") == [1, 0, 1]


async def test_without_options_the_texts_are_compared() -> None:
    assert await grades(["(C)"], [], "c", "C.", "The answer is C", "C) boat", "A or C", "") == [1, 1, 1, 0, 0, 0]
    assert await grades(["The Old Mill"], [], "old mill", "Answer: old mill", "mill") == [1, 1, 0]


@pytest.mark.parametrize("reference", ["E", "Velmor", "?", "C) Castin"])
async def test_a_reference_that_is_no_option_is_a_failure_not_a_zero(reference: str) -> None:
    with pytest.raises(JudgeError, match=r"name none of the options .*; give the letter or the text of one") as raised:
        await grades([reference], PLACES, "A")
    assert raised.value.kind == "no_reference"
    with pytest.raises(DataError, match="name none of the options"):
        refuse_unjudged(Choice(), [task("Where?", "A", options=PLACES), task("Where?", reference, options=PLACES)])
    refuse_unjudged(Choice(), [task("Where?", "A", options=PLACES)])
