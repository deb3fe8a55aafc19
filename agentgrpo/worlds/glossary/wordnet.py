"""WordNet's nouns that suit questions: a word, its meaning and its kind.

The file is `data.noun` of WordNet 3.0 (wndb(5WN)): one synset a line, with its words, pointers and gloss.
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
    """The gloss up to its first semicolon, without text in parentheses. No other noun has the same."""
    kind: str
    """The first word of the synset above it."""


class _Synset(NamedTuple):
    word: str
    meaning: str
    above: str | None


def read_nouns(folder: Path) -> list[Noun]:
    """Read the nouns in the order of the file. It leaves out words that are not plain single words, repeated words and
    meanings, meanings that contain the word or its kind, and very short or long meanings. Raises DataError."""
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
    """Yield (offset, synset)."""
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
            raise DataError(f"{file}, line {number}: not a synset; give WordNet's own data.noun") from e
        if not bar:
            raise DataError(f"{file}, line {number}: no gloss; give WordNet's own data.noun")
        meaning = re.sub(r"\([^)]*\)", "", gloss.partition(";")[0])
        yield fields[0], _Synset(word, " ".join(meaning.replace('"', "").split()), above)
