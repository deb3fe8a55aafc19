"""Text cut to a number of tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgrpo.tools.toolbox import MARKER, cut


def words(text: str) -> int:
    """A token a word, and one a line break."""
    return len(text.replace("\n", " \n ").split(" "))


def test_short_text_is_left_alone() -> None:
    assert cut("a b c", 3, words) == ("a b c", False)
    assert cut("", 1, words) == ("", False)


def test_the_marker_counts_too() -> None:
    """[... output truncated ...] is four words, its line break one."""
    assert cut("a b c d e f g h i", 8, words) == (f"a b c\n{MARKER}", True)


def test_where_not_even_the_marker_fits() -> None:
    assert cut("a b c d", 2, words) == (MARKER, True)


def test_only_what_may_be_shown_is_encoded() -> None:
    asked: list[int] = []

    def count(text: str) -> int:
        asked.append(len(text))
        return len(text)

    shown, was_cut = cut("x" * 10_000_000, 100, count)
    assert (shown, was_cut) == ("x" * 73 + "\n" + MARKER, True)
    assert sum(asked) < 5_000


def test_tokens_may_be_long() -> None:
    """A token for every 50 letters: twice as many characters are tried until they are too many."""
    assert cut("x" * 4_000, 100, lambda text: len(text) // 50 + 1) == ("x" * 4_000, False)
    shown, was_cut = cut("x" * 100_000, 100, lambda text: len(text) // 50 + 1)
    assert (len(shown), was_cut) == (4999, True)


@given(st.text(max_size=200), st.integers(8, 60))
def test_never_more_than_allowed_and_never_less_than_fits(text: str, limit: int) -> None:
    shown, was_cut = cut(text, limit, lambda t: len(t.encode("utf-8", "replace")))
    size = len(text.encode("utf-8", "replace"))
    assert was_cut == (size > limit)
    if not was_cut:
        assert shown == text
    elif limit > len(MARKER) + 5:
        assert limit - 4 < len(shown.encode("utf-8", "replace")) <= limit
        assert text.startswith(shown.removesuffix(f"\n{MARKER}"))


@pytest.mark.parametrize("limit", [1, 5])
def test_a_limit_below_the_marker_shows_the_marker(limit: int) -> None:
    assert cut("x" * 50, limit, len) == (MARKER, True)
