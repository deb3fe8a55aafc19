"""Whether passages say what a claim says, by words and by a language model."""

from __future__ import annotations

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.judges.report.support import LexicalSupport, LLMSupport
from tests import builders
from tests.judges.llm.models import Spoken, blocks, verdict

FOUNDED = builders.passage("f", "Velmor was founded by Castin in 1921.")
BORN = builders.passage("b", "Castin was born in Roka, and never left it.")
TASK = builders.task()


@pytest.mark.parametrize(
    "claim, is_supported",
    [
        ("Velmor was founded by Castin.", True),
        ("Castin founded Velmor in 1921.", True),
        ("He founded it in 1921.", True),
        ("Velmor, 1921", True),
        ("However, Velmor was founded by Castin.", True),
        ("Velmor was founded in 1922.", False),  # a number
        ("Velmor was founded by Orlin.", False),  # a name
        ("Tarn was founded by Castin.", False),  # a name that opens the sentence
        ("Castin did not found Velmor.", False),  # it denies
        ("Castin was born in Roka.", False),  # another passage says so
        ("Velmor was sold by Castin in 1921.", False),  # all names, and another verb
        ("Velmor sells anvils, kettles, and garden furniture.", False),
    ],
)
async def test_by_words(claim: str, is_supported: bool) -> None:
    assert await LexicalSupport().supports(TASK, claim, [FOUNDED]) is is_supported


async def test_passages_may_say_it_together_and_may_deny_it() -> None:
    support = LexicalSupport()
    assert await support.supports(TASK, "Castin, who founded Velmor, was born in Roka.", [FOUNDED, BORN])
    assert not await support.supports(TASK, "Castin, who founded Velmor, was born in Roka.", [BORN])
    assert await support.supports(TASK, "Castin never left Roka.", [BORN])


@pytest.mark.parametrize("min_score", [0.0, 1.1, float("nan")])
def test_a_bar_out_of_range_is_refused(min_score: float) -> None:
    with pytest.raises(ConfigError, match=r"judge\.support\.min_score"):
        LexicalSupport(min_score=min_score)


def reads(system: str, user: str) -> str:
    """1 where the passages (the answer) hold the last word of the claim (the question)."""
    said = dict(blocks(user))
    assert "report" in system
    return verdict(system, float(said["question"].split()[-1].strip(".") in said["answer"]))


async def test_by_a_language_model_that_is_shown_claim_and_passages() -> None:
    model = Spoken(reads)
    support = LLMSupport(completer=model, completion_price=1.0)
    assert await support.supports(TASK, "He comes from Roka.", [FOUNDED, BORN])
    assert not await support.supports(TASK, "He comes from Roka.", [FOUNDED])
    assert not await LLMSupport(completer=model, max_passage_chars=10).supports(TASK, "From Roka.", [BORN])
    assert support.counts()["calls"] == 2
    with pytest.raises(ConfigError, match=r"judge\.support\.max_passage_chars"):
        LLMSupport(completer=model, max_passage_chars=0)
