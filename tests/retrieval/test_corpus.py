from __future__ import annotations

from agentgrpo.core.types import Passage
from agentgrpo.retrieval.corpus import passage_of, searchable_text, well_formed


def test_a_missing_id_becomes_the_url_or_a_hash_of_the_text() -> None:
    assert passage_of({"text": "x", "url": "https://x.org"}).id == "https://x.org"
    hashed = passage_of({"text": "x"}).id
    assert len(hashed) == 32
    assert hashed == passage_of({"contents": "x"}).id != passage_of({"text": "y"}).id


def test_lone_surrogates_become_replacement_characters_and_nothing_else_changes() -> None:
    assert well_formed("a\ud800b\udc00") == "a\ufffdb\ufffd"
    assert well_formed("\ud83d\ude42 é") == "🙂 é"
    assert passage_of({"id": "\ud800", "text": "x\udfff"}) == Passage(id="\ufffd", text="x\ufffd")


def test_searchable_text_is_title_and_text() -> None:
    assert searchable_text(Passage(id="a", title="T", text="x")) == "T\nx"
    assert searchable_text(Passage(id="a", text="x")) == "x"
