"""WordNet's nouns as far as questions can be asked of them: a word, what it means, and what kind of thing it is.

The file is `data.noun` as WordNet 3.0 writes it (wndb(5WN)): a synset a line, its words, its pointers, its gloss.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from agentgrpo.core.errors import DataError

FILE = "data.noun"
_WORD = re.compile(r"[a-z]{3,12}")
_WORDS_OF_A_MEANING = range(4, 13)


class Noun(NamedTuple):
    word: str
    meaning: str
    """The gloss up to its first semicolon, without what stands in parentheses. No other noun has it."""
    kind: str
    """The first word of the synset above it."""


class _Synset(NamedTuple):
    word: str
    meaning: str
    above: str | None


def read_nouns(folder: Path) -> list[Noun]:
    """In the order of the file. Left out: what has no single plain word, words and meanings that come twice, meanings
    that say the word itself or the kind, and those that are very short or long. Raises DataError."""
    file = folder / FILE
    try:
        lines = file.read_text("utf-8").splitlines()
    except OSError as e:
        raise DataError(
            f"task.path={folder}: there is no {FILE} ({e.strerror}); install WordNet (apt-get install wordnet-base), "
            "or give the folder that holds it"
        ) from e
    synsets = dict(_synsets(lines, file))
    words = Counter(synset.word for synset in synsets.values())
    meanings = Counter(synset.meaning for synset in synsets.values())
    found = []
    for synset in synsets.values():
        above = synsets.get(synset.above or "")
        if above is None or words[synset.word] > 1 or meanings[synset.meaning] > 1:
            continue
        said = re.findall(r"[a-z]+", synset.meaning.lower())
        is_plain = all(_WORD.fullmatch(word) for word in (synset.word, above.word))
        if is_plain and len(said) in _WORDS_OF_A_MEANING and not {synset.word, above.word} & {*said}:
            found.append(Noun(synset.word, synset.meaning, above.word))
    return found


def _synsets(lines: list[str], file: Path) -> Iterator[tuple[str, _Synset]]:
    """By offset."""
    for number, line in enumerate(lines, 1):
        if line.startswith("  "):  # the licence
            continue
        facts, bar, gloss = line.partition(" | ")
        fields = facts.split()
        try:
            num_words = int(fields[3], 16)
            pointers = fields[5 + 2 * num_words :]
            above = next((pointers[i + 1] for i, symbol in enumerate(pointers) if symbol == "@"), None)
            word = fields[4]
        except (IndexError, ValueError) as e:
            raise DataError(f"{file}, line {number}: no synset as WordNet writes it; give its own data.noun") from e
        if not bar:
            raise DataError(f"{file}, line {number}: no gloss; give WordNet's own data.noun")
        meaning = re.sub(r"\([^)]*\)", "", gloss.partition(";")[0])
        yield fields[0], _Synset(word, " ".join(meaning.replace('"', "").split()), above)
