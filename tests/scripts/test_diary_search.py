"""What searching a diary answers beside a perfect memory of it."""

from __future__ import annotations

import diary_search
import pytest
from diary_search import in_plain_words


def test_each_sentence_is_put_in_plain_words_by_itself() -> None:
    told = "Monday. Velmor swapped the violin for the piano. Perhaps Osra trades in salt. Dorin has no pet now."
    plain = (
        "Monday. After violin, Velmor plays the piano. Perhaps Osra sells only salt. Please forget what Dorin keeps."
    )
    assert in_plain_words(told) == plain
    spread = "Tuesday. Velmor has a new home. It is in Rome. Osra had lunch with Dorin. Osra had a guest. It was Dorin."
    assert in_plain_words(spread) == spread.replace("had lunch with", "met")
    together = "Tuesday. Velmor lives in Rome. Osra met Dorin. Osra met Dorin."
    assert in_plain_words(spread, pairs=True) == together


def test_search_is_enough_for_plain_diaries_and_not_for_hard_ones(capsys: pytest.CaptureFixture[str]) -> None:
    diary_search.main(["--tasks", "22"])
    plain, hard = (block.splitlines() for block in capsys.readouterr().out.split("memory of the oracle")[1:])
    rows = [
        {line.split(" | ")[0][2:]: float(line.split(" | ")[1]) for line in of[4:] if "0." in line or "1." in line}
        for of in (plain, hard)
    ]
    assert rows[0]["oracle"] == rows[1]["oracle"] == 1.0
    assert rows[0]["rag_sentences"] > 0.98
    assert rows[1]["rag_sentences"] < 0.5 < rows[1]["told"] < 0.9 < rows[1]["told_pairs"]
    assert rows[0]["nothing"] == rows[1]["nothing"] == 0.0
