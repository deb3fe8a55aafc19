"""Answers as judges compare them: the normalisation of SQuAD's evaluation (Rajpurkar et al. 2016, arXiv 1606.05250)."""

from __future__ import annotations

import string
import unicodedata

_ARTICLES = frozenset({"a", "an", "the"})
_PUNCTUATION = frozenset(string.punctuation)


def words(text: str) -> list[str]:
    """`text` in lower case, without punctuation and articles, as words; [] when nothing is left.

    Beyond SQuAD: every script's punctuation goes, full-width and other compatibility forms count as the plain ones,
    and articles stay where there is nothing else, so that option "A" of a multiple choice can be right.
    """
    plain = unicodedata.normalize("NFKC", text).lower()
    found = "".join(c for c in plain if c not in _PUNCTUATION and unicodedata.category(c)[0] != "P").split()
    return [w for w in found if w not in _ARTICLES] or found


def normalise(text: str) -> str:
    """`words`, joined by single spaces; "" when nothing is left."""
    return " ".join(words(text))
