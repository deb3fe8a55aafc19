from __future__ import annotations

from fractions import Fraction

import pytest

from agentgrpo.core.errors import JudgeError
from agentgrpo.judges.answers import Numeric, number_of
from agentgrpo.judges.base import Grade
from tests.builders import task


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("72", 72),
        ("72.", 72),
        ("72.0", 72),
        ("072", 72),
        ("1,200", 1200),
        ("1\u202f200\u00a0000", 1_200_000),
        ("$1,200.50 in all", Fraction("1200.5")),
        ("-$5", -5),
        ("$-5", -5),
        ("−5 °C", -5),
        ("He has 18 apples.", 18),
        ("18 apples, so 18", 18),
        ("50%", 50),
        (".5", Fraction(1, 2)),
        ("1/2", Fraction(1, 2)),
        ("1⁄2", Fraction(1, 2)),
        ("1.2e3", 1200),
        ("5 eggs", 5),
        ("the 5th", 5),
        ("72 m²", 72),
        ("area of 72 m2", 72),
        ("７２", 72),
        ("٧٢", 72),
        ("Natalia sold 48/2 = 24 clips.\n#### 72", 72),
        ("#### 1,200", 1200),
        ("seventy-two", None),
        ("", None),
        ("-", None),
        ("1/0", None),
        ("10³", None),
        ("10^3", None),
        ("1,2", None),
        ("1.2.3", None),
        ("12 345", None),
        ("3-5", None),
        ("3 or 5", None),
        ("48/2 = 24", 24),
        ("48 - 24 = 24", None),
        ("#### 3 #### ", None),
        ("9" * 5000, None),
        ("B2B", None),
        ("\\boxed{5}", 5),
        ("\\boxed{-5}", -5),
        ("**5**", 5),
        ("**Answer:** 5", 5),
        ("$5$", 5),
        ("5%", 5),
        ("$5", 5),
        ("5.", 5),
        ("#### 5", 5),
        ("<answer>5</answer>", 5),
        ("Great! 5", 5),
        ("$5/hour", 5),
        ("72 m^2", 72),
        ("1{,}200", 1200),
        ("* 5", 5),
        ("a 5-year plan", 5),
        ("+5", 5),
        ("it is -5", -5),
        ("5 more than Tom", 5),
        ("not 5", None),
        ("5 is wrong", None),
        ("It isn’t 5", None),
        ("anything but 5", None),
        ("x != 5", None),
        ("=\u0338 5", None),
        (r"x \neq 5", None),
        ("< 5", None),
        ("at least 5", None),
        ("less than $5", None),
        ("maybe 5", None),
        ("5?", None),
        ("~~5~~", None),
        ("not $5$", None),
        ("x = - 5", -5),
        ("(-5)", -5),
        ("- 5", -5),
        ("negative 5", -5),
        ("It is Minus $5", -5),
        ("{-}5", -5),
        ("covid-19", None),
        *((f"{dash}5", -5) for dash in "\u2010\u2011\u2013\u2014\u2212\ufe58\ufe63\uff0d"),
        *((text, None) for text in ("10^{3}", "2½", "2 ½", "½", "⑤", "√4", "5!", "7 x 7", "7x7", "7 × 7", "7·7")),
        *((text, None) for text in ("2**2", "2 * 2", "\\frac{2}{2}", "1_000", "2 + 2", "2 + ", "5²", "0x5", "5(5)")),
        *((text, None) for text in ("x - 5", "x -5", "x-5", "x minus 5", "5 - x", "5 -", "--5", "±5", "5/", "1:1")),
        *((text, None) for text in ("7 times 7", "1 2/2", "5'5", "1/1/1", "5 = 5!")),
    ],
)
def test_the_one_number_of_a_text(text: str, number: Fraction | int | None) -> None:
    assert number_of(text) == number


async def test_a_right_number_is_right_however_it_is_written() -> None:
    answers = ["1200", "$1,200.00", "1,200 apples", "1200 or 1300", "1 2 3 1200", "1201", "", "twelve hundred"]
    verdicts = await Numeric().grade(task("How many?", "1,200"), answers)
    assert verdicts == [Grade(score=s) for s in (1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)]


async def test_a_percent_sign_is_a_unit() -> None:
    verdicts = await Numeric().grade(task("What share?", "12%"), ["12", "12%", "12 percent", "0.12"])
    assert verdicts == [Grade(score=s) for s in (1.0, 1.0, 1.0, 0.0)]


async def test_a_reference_that_is_no_number_is_no_grade() -> None:
    with pytest.raises(JudgeError, match=r"task t0: references \['Paris'\] are no numbers; give at least one that is"):
        await Numeric().grade(task("Where?", "Paris"), ["Paris"])
