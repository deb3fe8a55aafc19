from __future__ import annotations

import pytest

from agentgrpo.services.page_parts import PagePart, open_part

PAGE = "aaaa Word bbbb of two words cccc WORD dd"
"""Four parts of 10 characters."""


@pytest.mark.parametrize(
    ("part", "find", "expected"),
    [
        (1, "", PagePart(text="aaaa Word ", number=1, of=4)),
        (4, "", PagePart(text="cc WORD dd", number=4, of=4)),
        (5, "", None),
        (1, "word", PagePart(text="aaaa Word ", number=1, of=4, more=(3, 4))),
        (3, "word", PagePart(text="o words cc", number=3, of=4, more=(4,))),
        (1, " two \n WORDS", PagePart(text="bbbb of tw", number=2, of=4)),
        (1, "nowhere", None),
        (1, "b.*", None),
    ],
)
def test_the_part_that_is_asked_for(part: int, find: str, expected: PagePart | None) -> None:
    assert open_part(PAGE, max_chars=10, part=part, find=find) == expected


def test_where_a_part_stands() -> None:
    assert PagePart(text="x", number=1, of=1).note == ""
    assert PagePart(text="x", number=2, of=3).note == "Part 2 of 3."
    assert PagePart(text="x", number=1, of=9, more=(4, 7)).note == "Part 1 of 9. Also found in part 4, 7."


@pytest.mark.parametrize("text", ["", "x", "x" * 10])
def test_a_page_that_fits_is_one_part(text: str) -> None:
    assert open_part(text, max_chars=10) == PagePart(text=text, number=1, of=1)
