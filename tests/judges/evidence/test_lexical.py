"""The lexical judge reads: chains, rare words, and what nothing found could say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage
from agentgrpo.judges.base import EvidenceGrade, QueryResults
from agentgrpo.judges.evidence.lexical import LexicalEvidence
from agentgrpo.judges.evidence.rarity import Rarity
from tests.builders import passage, task

FOUNDED = passage("a", "Velmor was founded by Castin.")
BORN = passage("b", "Castin was born in Roka.")
CHATTER = passage("c", "Tours of the Velmor headquarters are popular.")
OFFICE = passage("d", "The main office of Velmor is near Balvin.")
OTHER = passage("e", "Dorlan was founded by Misrel.")
OTHER_BORN = passage("f", "Misrel was born in Tosk.")
TOURS = [
    passage(f"tours-{i}", f"Tours of the {n} headquarters are popular.") for i, n in enumerate(["Ulm", "Ost", "Pell"])
]
CORPUS = [FOUNDED, BORN, CHATTER, OFFICE, OTHER, OTHER_BORN, *TOURS]
THESAURUS = {"headquarters": ["main", "office", "near"]}


def lexical(**options: Any) -> LexicalEvidence:
    return LexicalEvidence(**{"corpora": {"vdb": CORPUS}, "thesaurus": THESAURUS, **options})


def graded(question: str, *seen: Passage, judge: LexicalEvidence | None = None) -> EvidenceGrade:
    return (judge or lexical()).judge_round(task(question=question), [], seen)


@pytest.mark.parametrize(
    ("question", "enough", "not_enough"),
    [
        ("Who founded Velmor?", [[FOUNDED], [CHATTER, FOUNDED]], [[CHATTER], [OTHER], [OFFICE]]),
        # the second hop names no Velmor, and the first no birth
        (
            "Where was the founder of Velmor born?",
            [[FOUNDED, BORN], [BORN, CHATTER, FOUNDED]],
            [[FOUNDED], [BORN], [FOUNDED, OTHER_BORN], [CHATTER, BORN], [OTHER, OTHER_BORN]],
        ),
        # a passage may say all words of the question, and no answer; the thesaurus knows what says one
        ("Where is Velmor headquartered?", [[OFFICE]], [[CHATTER], [FOUNDED]]),
        # "makes" nobody says; of a name that nobody has, nothing is known
        ("Who founded Xyzzy?", [], [[FOUNDED], [FOUNDED, BORN, OFFICE]]),
    ],
)
def test_it_reads(question: str, enough: Sequence[list[Passage]], not_enough: Sequence[list[Passage]]) -> None:
    assert all(graded(question, *seen).sufficient for seen in enough)
    assert not any(graded(question, *seen).sufficient for seen in not_enough)


def test_by_hand() -> None:
    """Of 9 passages 3 have "Velmor", 2 "founded", 4 "tours": ln(9 / 3) / ln 9 = 0.5, 0.68454, 0.36907."""
    velmor, founded = (1 + 0.5) / 2, (1 + 0.68454) / 2
    assert graded("Who founded Velmor?", FOUNDED).score == 1.0
    assert graded("Who founded Velmor?", OTHER).score == pytest.approx(founded / (velmor + founded), abs=1e-5)
    # tours are nothing new: half
    assert graded("Who founded Velmor?", CHATTER).score == pytest.approx(velmor / (velmor + founded) / 2, abs=1e-5)
    assert graded("Who founded Velmor?") == EvidenceGrade(sufficient=False, score=0.0, num_sufficient_queries=0)
    assert graded("", FOUNDED).score == 0.0


def test_what_stands_twice_is_told_twice() -> None:
    words = {"ape": "primate", "primate": "mammal", "spoon": "cutlery", "lamp": "device"}
    ape, primate, spoon, lamp = (passage(word, f"{word} is a kind of {kind}") for word, kind in words.items())
    judge = LexicalEvidence(corpora={"vdb": [ape, primate, spoon, lamp, *CORPUS]})
    once, twice = "What kind of thing is an ape?", "What kind of thing is the kind of an ape?"
    assert graded(once, ape, judge=judge).sufficient
    assert not graded(twice, ape, judge=judge).sufficient
    assert not graded(twice, ape, spoon, lamp, judge=judge).sufficient
    assert graded(twice, ape, spoon, primate, judge=judge).sufficient


def test_scores_of_retrievers_and_their_order_play_no_part() -> None:
    scored = [passage(p.id, p.text, score=s) for p, s in ((FOUNDED, 900.0), (BORN, -1.0))]
    question = "Where was the founder of Velmor born?"
    assert graded(question, *scored) == graded(question, *reversed(scored)) == graded(question, FOUNDED, BORN)


def test_queries_are_graded_by_their_own_passages() -> None:
    results = [
        QueryResults(query="founded Velmor", passages=(FOUNDED, CHATTER)),
        QueryResults(query="born Misrel", passages=(BORN,)),
        QueryResults(query="born Misrel", passages=()),
    ]
    assert lexical().judge_round(task(question="Who?"), results, [FOUNDED]).num_sufficient_queries == 1


def test_without_a_corpus_names_and_long_words_are_rare() -> None:
    judge = LexicalEvidence()
    assert graded("Who founded Velmor?", FOUNDED, judge=judge).score == 1.0
    assert not graded("Where was the founder of Velmor born?", FOUNDED, judge=judge).sufficient
    rarity = Rarity([])
    assert [rarity("castin", is_name=True), rarity("1984"), rarity("founded"), rarity("a")] == [
        1.0,
        1.0,
        7 / 12,
        1 / 12,
    ]


@given(st.permutations(CORPUS), st.integers(0, len(CORPUS)))
def test_one_more_passage_never_lowers_the_score(order: list[Passage], count: int) -> None:
    judge, question = lexical(), "Where was the founder of Velmor born?"
    scores = [graded(question, *order[:n], judge=judge).score for n in range(count)]
    assert scores == sorted(scores)
    assert all(0 <= score <= 1 for score in scores)


def test_many_passages_that_all_go_on_from_each_other_take_no_time() -> None:
    alike = [passage(str(i), f"Velmor Castin Roka Balvin {i} founder born city river") for i in range(60)]
    question = "Where was the founder of the river city of Dorlan born and founded?"
    judge = LexicalEvidence(corpora={"vdb": alike})
    assert graded(question, *alike, judge=judge).score < 1.0  # bounded by the number of chains, or it would not end


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"min_score": 0.0}, "environment.evidence.min_score=0.0; above 0 and up to 1 is allowed"),
        ({"min_rarity": float("nan")}, "environment.evidence.min_rarity=nan; above 0 "),
        ({"max_hops": 0}, "environment.evidence.max_hops=0; 1 or more"),
        ({"stemmer": "klingon"}, "stemmer='klingon'"),
    ],
)
def test_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        lexical(**given)
