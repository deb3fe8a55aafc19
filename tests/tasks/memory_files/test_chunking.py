"""Texts as chunks: nothing is lost, nothing is too long, and cuts fall between sentences."""

from __future__ import annotations

import random

import pytest

from agentgrpo.tasks.memory_files.building import Packing, cut_text, num_words


@pytest.mark.parametrize(
    ("text", "count"), [("", 0), (" two  words\n", 2), ("王小明 is 28.", 5), ("こんにちは", 5), ("안녕 하세요", 2)]
)
def test_words(text: str, count: int) -> None:
    assert num_words(text) == count


@pytest.mark.parametrize(
    ("text", "limit", "pieces"),
    [
        ("One two. Three four.", 4, [("One two. Three four.", 4)]),
        ("One two. Three four.", 3, [("One two.", 2), ("Three four.", 2)]),
        ('He said "no." Then left.', 3, [('He said "no."', 3), ("Then left.", 2)]),
        ("a b c d e. f", 2, [("a b", 2), ("c d", 2), ("e.", 1), ("f", 1)]),
        ("first line\nsecond line", 2, [("first line", 2), ("second line", 2)]),
        ("小明去北京。他很好。", 5, [("小明去北京。", 5), ("他很好。", 3)]),
        ("v1.2 is out. Try it", 3, [("v1.2 is out.", 3), ("Try it", 2)]),
    ],
)
def test_cuts(text: str, limit: int, pieces: list[tuple[str, int]]) -> None:
    assert cut_text(text, limit) == pieces


def test_no_word_is_lost_and_no_piece_is_too_long() -> None:
    rng = random.Random(0)
    for _ in range(500):
        text = "".join(rng.choice(["word", "a", " ", "  ", ". ", "? ", "\n", "。", "语", '." ']) for _ in range(60))
        limit = rng.randint(1, 12)
        pieces = cut_text(text, limit)
        assert "".join("".join(piece.split()) for piece, _ in pieces) == "".join(text.split())
        assert [num_words(piece) for piece, _ in pieces] == [count for _, count in pieces]
        assert all(count <= limit for _, count in pieces)


def test_packing() -> None:
    packing = Packing(max_words=5, max_units=2, separator="|")
    units = [[("a", 2)], [("b", 2)], [("c", 1)], [("d", 5), ("e", 1)], [("f", 4)]]
    for unit in units:
        expected = packing.needs(unit)
        packing.add(unit)
        assert len(packing.chunks) == expected
    assert packing.texts == ["a|b", "c", "d", "e|f"]
