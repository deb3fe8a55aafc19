"""The words a reranker should know for this world: query word -> words that documents use instead."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path


@cache
def thesaurus() -> Mapping[str, tuple[str, ...]]:
    raw = json.loads((Path(__file__).parent / "thesaurus.json").read_text(encoding="utf-8"))
    return {word: tuple(others) for word, others in raw.items()}
