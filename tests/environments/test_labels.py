from dataclasses import replace

import pytest

from agentgrpo.core.types import Citation
from agentgrpo.environments.search.grammar import Labels, clean, document_id, marker_places, strip_markers
from tests.builders import passage

A, B, C = (passage(id, f"text {id}", url=f"http://x.test/{id}#top") for id in "abc")


def test_markers_count_rounds_that_showed_something_queries_and_documents() -> None:
    labels = Labels()
    assert labels.add_round([(1, [A, B])]) == [["[R1Q1D1]", "[R1Q1D2]"]]
    assert labels.add_round([(1, []), (2, [])]) == [[], []]
    assert labels.add_round([(1, []), (3, [C])]) == [[], ["[R2Q3D1]"]]
    assert labels.documents == {"a": A, "b": B, "c": C}
    assert [labels.marker_of(p) for p in (A, B, C)] == ["[R1Q1D1]", "[R1Q1D2]", "[R2Q3D1]"]
    with pytest.raises(KeyError):
        labels.marker_of(passage("d", "never shown"))


def test_citations_are_existing_markers_once_each_in_order() -> None:
    labels = Labels()
    labels.add_round([(1, [A, B])])
    answer = "Roka [R1Q1D2][R9Q1D1] or [R1Q1D1], [R1Q1D2] [R01Q1D1] R1Q1D1"
    assert labels.cite(answer) == (
        Citation(doc_id="b", marker="[R1Q1D2]", text="text b", places=(4, 8)),
        Citation(doc_id="a", marker="[R1Q1D1]", text="text a", places=(7,)),
    )
    assert strip_markers(answer) == "Roka or, R1Q1D1"
    assert labels.cited(labels.cite(answer)) == [B, A]


@pytest.mark.parametrize(
    "written, answer",
    [
        (" Roka [R1Q1D1]", "Roka"),
        ("Roka\n [R1Q1D1][R9Q9D9].", "Roka."),
        ("[R1Q1D1] Roka  [R1Q1D2] and Tor ", "Roka and Tor"),
        ("a  b", "a  b"),
        (" [R1Q1D1] ", ""),
        ("[R1Q1]", "[R1Q1]"),
    ],
)
def test_the_answer_is_the_text_without_markers(written: str, answer: str) -> None:
    assert strip_markers(written) == answer


@pytest.mark.parametrize(
    "written, places",
    [
        ("Castin founded it [R1Q1D1]. He sings [R2Q1D1][R1Q1D1].", {"[R1Q1D1]": (17, 27), "[R2Q1D1]": (27,)}),
        ("  Castin founded it. [R1Q1D1] He sings. [R2Q1D1]", {"[R1Q1D1]": (18,), "[R2Q1D1]": (28,)}),
        (
            "[R1Q1D1] Castin founded it.\n2. [R2Q1D1] [R3Q1D1] He sings",
            {"[R1Q1D1]": (0,), "[R2Q1D1]": (22,), "[R3Q1D1]": (22,)},
        ),
        (" [R1Q1D1] ", {"[R1Q1D1]": (0,)}),
        ("Castin", {}),
    ],
)
def test_a_citation_says_where_in_the_answer_it_stood(written: str, places: dict[str, tuple[int, ...]]) -> None:
    assert marker_places(written) == places
    answer = strip_markers(written)
    assert all(0 <= place <= len(answer) for found in places.values() for place in found)


def test_the_same_document_by_id_then_page_then_title_then_beginning() -> None:
    assert document_id(passage("7", "x", title="t", url="http://u")) == "7"
    assert document_id(passage("", "x", title="t", url="http://u#part")) == "http://u"
    assert document_id(passage("", "x", title="t")) == "t"
    assert document_id(passage("", "x" * 600)) == "x" * 512


def test_documents_become_one_line() -> None:
    raw = passage("1", "a\r\n b\u2028c\x1cd\x85e \ud800", title=" t\nt ", url="u\n", score=2.0)
    assert clean(raw) == passage("1", "a b c d e ?", title="t t", url="u", score=2.0)
    assert clean(A) is A


def test_a_page_finds_the_document_with_its_url() -> None:
    labels = Labels()
    labels.add_round([(1, [passage("n", "no url"), A])])
    page, other = (passage(url, f"all of {url}", url=url) for url in ("http://x.test/a#bottom", "http://x.test/b"))
    assert labels.add_pages([(1, page), (2, other)]) == ["[R1Q1D2]", "[R2Q2D1]"]
    assert list(labels.documents) == ["n", "a", "http://x.test/b"]
    assert labels.cite("[R1Q1D2][R2Q2D1]") == (
        Citation(doc_id="a", marker="[R1Q1D2]", text="text a all of http://x.test/a#bottom", places=(0,)),
        Citation(doc_id="http://x.test/b", marker="[R2Q2D1]", text="all of http://x.test/b", places=(0,)),
    )
    assert labels.add_pages([(1, replace(page, text="it begins with text a and goes on"))]) == ["[R1Q1D2]"]
    assert labels.add_round([(1, [C])]) == [["[R3Q1D1]"]]
    assert labels.add_pages([(1, passage("i", "its URL was invisible"))]) == ["[R4Q1D1]"]
