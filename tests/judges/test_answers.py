"""Answer judges on hand-computed pairs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgrpo.core.errors import ConfigError, JudgeError
from agentgrpo.judges.answers import (
    MAX_CHARS,
    Choice,
    Contains,
    ExactMatch,
    GoldAgreement,
    Keywords,
    Numeric,
    TokenF1,
    normalise,
    words,
)
from agentgrpo.judges.base import AnswerJudge
from tests.builders import task


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Beatles!", "beatles"),
        ("  an\tapple \n a day ", "apple day"),
        ("Jean-Luc O'Neil", "jeanluc oneil"),
        ("\uff13\uff10 dollars", "30 dollars"),
        ("\u00abParis\u00bb \u2014 \u201cville\u201d", "paris ville"),
        ("theatre another", "theatre another"),
        ("A", "a"),
        ("the the", "the the"),
        ("?!...", ""),
        ("", ""),
    ],
)
def test_normalisation_drops_case_punctuation_and_articles(text: str, expected: str) -> None:
    assert normalise(text) == expected


SAME_NUMBERS = [
    ("72", "72.0", "72.00", "+72", "$72", "72.", "the 72.0!", " 72 %"),
    ("1200", "1,200", "1,200.0", "1'200", "1_200", "1\u202f200", "\uff11\uff0c\uff12\uff10\uff10"),
    ("1234567", "1,234,567", "12,34,567", "1.234.567"),
    ("-5", "\u22125", "\u20135", "-5.0", "-$5", "$-5", "(-5)", "**-5**", "=-5"),
    ("0.5", ".5", "0.50", "(.5)"),
    ("1/2", "1 / 2", "\u00bd", "1\u20442"),
    ("0", "-0", "-0.0", "0.0"),
    ("1e-5", "1E-5", "1e\u22125"),
]
DIFFERENT_NUMBERS = [
    *("35", "3.5", "3,5", "-3.5", "3.05", "3/5", "3:5 4", "0.35", "3^5 2", "-35", "350"),
    *(
        "102",
        "10\u00b2 3",
        "10.2",
        "1e5",
        "1e-5",
        "1/2",
        "12",
        "2\u00bd",
        "21/2",
        "911",
        "9/11",
        "v1.2",
        "v12",
        "1.2.3",
    ),
    *("123", "1, 2, 4", "1.23", "20200105", "2020-01-06", "5", "-5"),
]


@pytest.mark.parametrize("ways", SAME_NUMBERS, ids=lambda ways: ways[0])
def test_a_number_is_the_same_however_it_is_written(ways: tuple[str, ...]) -> None:
    assert {normalise(way) for way in ways} == {ways[0]}


def test_signs_points_and_fraction_bars_tell_numbers_apart() -> None:
    assert len({normalise(text) for text in DIFFERENT_NUMBERS}) == len(DIFFERENT_NUMBERS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("COVID-19 and F-16", "covid19 and f16"),
        ("- 5 apples", "5 apples"),
        ("1990\u20131995", "1990 1995"),
        ("1990 -1995", "1990 1995"),
        ("3--5", "3 5"),
        ("at (3,-5), at 10:30 a.m.", "at 3 -5 at 10 30 am"),
        ("1,200,5", "1 200 5"),
        ("No.5 ... 5.", "no5 5"),
        ("H\u2082O in m\u00b2, km/h and/or mph", "h2o in m2 kmh andor mph"),
        ("a 4.50-inch screen", "4.5inch screen"),
    ],
)
def test_marks_beside_numbers_that_are_no_part_of_them(text: str, expected: str) -> None:
    assert normalise(text) == expected


@pytest.mark.parametrize("judge", [ExactMatch(), TokenF1(), Contains(), GoldAgreement(), Choice()])
@pytest.mark.parametrize(
    ("reference", "wrong"), [("3.5", "35"), ("-5", "5"), ("1/2", "2"), ("3.5", "5"), ("-5", "-50")]
)
async def test_no_judge_of_words_pays_for_another_number(judge: AnswerJudge, reference: str, wrong: str) -> None:
    grades = await judge.grade(task("q", reference), [wrong, reference, f"{reference} "])
    assert [grade.score for grade in grades] == [0, 1, 1]


REFERENCES = ("The Old Mill", "Castin Vel")
ANSWERS = [
    "old mill",
    "Castin Vel, they say",
    "Castin",
    "it was the old mill of Vel",
    "Orlin",
    "",
    " .?! ",
    "Vel Castin",
]


@pytest.mark.parametrize(
    ("judge", "expected"),
    [
        (ExactMatch(), [1, 0, 0, 0, 0, 0, 0, 0]),
        # 2·2/(4+2)   2·1/(1+2)   words of answer 4: it was old mill of vel = 6, 2·2/(6+2)
        (TokenF1(), [1, 4 / 6, 2 / 3, 4 / 8, 0, 0, 0, 1]),
        (Contains(), [1, 0.7, 0, 0.7, 0, 0, 0, 0]),
        (Contains(contained=0.4), [1, 0.4, 0, 0.4, 0, 0, 0, 0]),
        (GoldAgreement(), [1, 0.7, 0.6 * 2 / 3, 0.7, 0, 0, 0, 0.6]),
        (GoldAgreement(contained=0.9, overlap=0.3), [1, 0.9, 0.3 * 2 / 3, 0.9, 0, 0, 0, 0.3]),
    ],
)
async def test_each_judge_takes_its_best_over_the_references(judge: AnswerJudge, expected: list[float]) -> None:
    verdicts = await judge.grade(task("Where?", *REFERENCES), ANSWERS)
    assert [v.score for v in verdicts] == pytest.approx(expected, abs=1e-12)


DUMP = " ".join(f"w{i}" for i in range(16))
"""More words than an answer may have beside a reference of one word."""


async def test_a_dump_of_passages_that_has_the_reference_does_not_contain_it() -> None:
    asked, sentence = task("Who?", "Castin"), DUMP.removesuffix(" w15")
    assert [v.score for v in await Contains().grade(asked, [f"{sentence} Castin", f"{DUMP} Castin"])] == [0.7, 0.0]
    agreed = await GoldAgreement().grade(asked, [f"{sentence} Castin", f"{DUMP} Castin", f"Castin {DUMP * 500}"])
    assert [v.score for v in agreed] == pytest.approx([0.7, 0.6 * 2 / (17 + 1), 0.6 * 2 / (1 + 15 * 500 + 1 + 1)])
    loose = await GoldAgreement(max_extra_words=16).grade(asked, [f"{DUMP} Castin"])
    assert loose[0].score == 0.7
    with pytest.raises(ConfigError, match=r"judge\.max_extra_words=-1; 0 or more is allowed"):
        Contains(max_extra_words=-1)


async def test_containment_is_of_whole_words_wherever_they_stand() -> None:
    verdicts = await Contains().grade(task("q", "art", "19"), ["party", "1990", "art party", "party of art"])
    assert [v.score for v in verdicts] == [0, 0, 0.7, 0.7]


async def test_repeated_words_count_as_often_as_they_occur() -> None:
    # overlap 1 of answer x x x (3) and reference x y (2)
    assert [v.score for v in await TokenF1().grade(task("q", "x y"), ["x x x"])] == pytest.approx([2 / 5])


@pytest.mark.parametrize("judge", [ExactMatch(), TokenF1(), Contains(), GoldAgreement()])
async def test_a_task_without_a_comparable_reference_is_a_failure_not_a_zero(judge: AnswerJudge) -> None:
    with pytest.raises(JudgeError, match=r"task t0: references \['\?'\] hold nothing") as caught:
        await judge.grade(task("q", "?"), ["x"])
    assert caught.value.kind == "no_reference"


@pytest.mark.parametrize("make", [lambda: Contains(contained=1.1), lambda: GoldAgreement(overlap=-0.1)])
def test_a_grade_outside_0_and_1_is_refused(make: object) -> None:
    with pytest.raises(ConfigError, match="a grade lies between 0 and 1"):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("judge", [ExactMatch(), TokenF1(), Contains(), GoldAgreement()])
@given(reference=st.text(max_size=20), answers=st.lists(st.text(max_size=20), max_size=3))
async def test_grades_lie_in_0_and_1_and_only_answers_with_words_can_match(
    judge: AnswerJudge, reference: str, answers: list[str]
) -> None:
    of = task("q", "fallback", reference)
    scores = [v.score for v in await judge.grade(of, [*answers, reference])]
    assert len(scores) == len(answers) + 1
    assert all(0 <= s <= 1 for s in scores)
    assert all(s == 0 for s, a in zip(scores, answers, strict=False) if not words(a))
    assert scores[-1] == (1.0 if words(reference) else 0.0)


@pytest.mark.parametrize("text", ["castin " * 10**6, "\ufdfa" * 10**6, "?" * 10**6 + "a", "(" * 10**6])
@pytest.mark.parametrize("judge", [ExactMatch(), GoldAgreement(), Numeric(), Keywords(), Choice()])
async def test_a_huge_answer_holds_nothing_up(judge: AnswerJudge, text: str) -> None:
    """Only its beginning is read. Where all of it was, some of these took minutes."""
    of = task("q", "1", "castin moved")
    [grade] = await judge.grade(of, [text])
    assert grade.score < 0.1
    assert len(words(text)) <= MAX_CHARS
