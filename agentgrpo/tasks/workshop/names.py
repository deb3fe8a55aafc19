"""Names of things that are made, sold and shipped ("velmor"), sorted into three pools; and of people, who are no part
of any answer and are the same everywhere."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from agentgrpo.tasks.almanac import names as almanac
from agentgrpo.tasks.almanac.names import Pool


@cache
def items(pool: Pool) -> tuple[str, ...]:
    """The almanac's names of the pool in small letters, but for those in -s: more of a thing are its name and an s."""
    return tuple(name.lower() for name in almanac.names(pool) if not name.endswith("s"))


@cache
def people() -> tuple[str, ...]:
    return tuple(json.loads((Path(__file__).parent / "people.json").read_text(encoding="utf-8")))


def beginning() -> str:
    """A regular expression of the first syllable of any name, with the space before it. Cut there, a name is two
    tokens, each of which is as common in held-out names as in those of training."""
    first, second = ("|".join(group) for group in almanac.syllables())
    return f" ?(?<![a-z])(?:{first})(?=(?:{second})(?![a-z]))".lower()
