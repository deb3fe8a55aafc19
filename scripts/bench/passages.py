"""Write a corpus of a given size, and draw queries for it. The words are made up and drawn by Zipf's law: the texts
have no meaning.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from agentgrpo.retrieval.index.passages import PassageFile


def write_corpus(path: Path, passages: int) -> None:
    dice = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "il", "on", "us")]
    words = np.array(sorted({"".join(dice.choice(syllables, n)) for n in (1, 2, 3, 4) for _ in range(12_000)}))
    share = 1 / np.arange(1, len(words) + 1) ** 1.07
    dice.shuffle(words)
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, passages, 10_000):
            drawn = dice.choice(words, (min(10_000, passages - start), 60), p=share / share.sum())
            for number, row in enumerate(drawn.tolist(), start):
                title, text = " ".join(row[:2]).title(), " ".join(row[2 : 30 + number % 30])
                file.write(json.dumps({"id": str(number), "contents": f'"{title}"\n{text}'}) + "\n")


def queries_of(passages: PassageFile, number: int) -> list[str]:
    """Six words of a passage each, no two queries equal."""
    dice = np.random.default_rng(1)
    found = (passages[int(i)].text.split() for i in dice.integers(len(passages), size=number))
    return list(dict.fromkeys(" ".join(dice.choice(words, 6)) for words in found))
