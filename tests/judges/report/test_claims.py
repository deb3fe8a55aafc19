"""Reports, cut into claims that know what they cite."""

from __future__ import annotations

import pytest

from agentgrpo.core.types import Citation
from agentgrpo.environments.search.grammar import Labels, strip_markers
from agentgrpo.judges.report.claims import claims_of
from tests.builders import passage

FOUNDED = passage("f", "Velmor was founded by Castin in 1921.")
BORN = passage("b", "Castin was born in Roka, and never left it.")


def claims(written: str) -> list[tuple[str, list[str]]]:
    """Of an answer with its markers: [R1Q1D1] is f, [R1Q1D2] is b."""
    labels = Labels()
    labels.add_round([(1, [FOUNDED, BORN])])
    found = claims_of(strip_markers(written), labels.cite(written))
    return [(claim.text, [c.doc_id for c in claim.cited]) for claim in found]


def test_each_sentence_has_what_stands_in_it_behind_it_or_before_it() -> None:
    report = (
        "Castin founded it [R1Q1D1]. He was born in Roka. [R1Q1D2] He sings.\n"
        "- [R1Q1D1] It began in 1921\n"
        "2. Both [R1Q1D1] and his birth [R1Q1D2] are known.\n"
        "[R1Q1D2] Roka is far."
    )
    assert claims(report) == [
        ("Castin founded it.", ["f"]),
        ("He was born in Roka.", ["b"]),
        ("He sings.", []),
        ("It began in 1921", ["f"]),
        ("Both and his birth are known.", ["f", "b"]),
        ("Roka is far.", ["b"]),
    ]


def test_a_full_stop_ends_no_sentence_in_abbreviations_initials_and_numbers() -> None:
    report = (
        "Dr. J. R. Castin paid approx. 3.5 million, i.e. a lot, cf. Smith et al. 2021, e.g. to St. Roka. So it is said."
    )
    assert [text for text, _ in claims(report)] == [report.removesuffix(" So it is said."), "So it is said."]


def test_a_long_line_of_initials_is_cut_in_time_proportional_to_it() -> None:
    assert len(claims("A. " * 100_000 + "So it is said.")) == 1


@pytest.mark.parametrize(
    "written", ["# A heading of words", "The following holds:", "Is that all?", "Roka", "- **Roka**"]
)
def test_what_claims_nothing_is_no_claim_beside_others(written: str) -> None:
    assert [text for text, _ in claims(f"{written}\nCastin founded it.")] == ["Castin founded it."]


def test_an_answer_without_a_sentence_is_one_claim() -> None:
    assert claims("Roka [R1Q1D2]") == [("Roka", ["b"])]
    assert claims("- Roka [R1Q1D2]\n- Castin [R1Q1D1]") == [("Roka", ["b"]), ("Castin", ["f"])]
    assert claims("# Castin of Roka [R1Q1D2]\nWas Castin born in Roka [R1Q1D2]?\nRoka [R1Q1D2]:") == []
    assert claims(" ") == []


def test_what_is_said_twice_is_one_claim() -> None:
    assert claims("Castin founded it [R1Q1D1]. castin FOUNDED it.") == [("Castin founded it.", ["f"])]


def test_sentences_of_other_scripts_end_without_a_space() -> None:
    assert [text for text, _ in claims("卡斯廷 创立 了 它。他 出生 在 罗卡。")] == [
        "卡斯廷 创立 了 它。",
        "他 出生 在 罗卡。",
    ]


def test_a_citation_without_a_known_place_belongs_to_no_claim() -> None:
    [claim] = claims_of("Castin founded it.", [Citation(doc_id="f", marker="[R1Q1D1]", text=FOUNDED.text)])
    assert claim.cited == ()
