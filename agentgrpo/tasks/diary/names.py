"""Who is written about: the almanac's people, sorted into three pools by their names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random

from agentgrpo.tasks.almanac import names as almanac
from agentgrpo.tasks.almanac.names import Pool


def people(pool: Pool, count: int, rng: Random) -> list[str]:
    """Names of the pool, no two of which begin with the same syllable: who has read one knows how it goes on."""
    by_beginning = _by_beginning(pool)
    return [rng.choice(by_beginning[first]) for first in rng.sample(sorted(by_beginning), count)]


def most_people(pool: Pool) -> int:
    """How many `people` can give."""
    return len(_by_beginning(pool))


def beginning() -> str:
    """A regular expression of the first syllable of any name, with the space before it. Cut there, a name is two
    tokens, each of which is as common in held-out names as in those of training."""
    first, second = ("|".join(group) for group in almanac.syllables())
    return f" ?(?<![A-Za-z])(?:{first})(?=(?:{second})(?![a-z]))"


@cache
def _by_beginning(pool: Pool) -> dict[str, Sequence[str]]:
    firsts, seconds = almanac.syllables()
    allowed = frozenset(almanac.names(pool))
    made = {first: [first + second for second in seconds if first + second in allowed] for first in firsts}
    return {first: group for first, group in made.items() if group}
