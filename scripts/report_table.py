"""How well the word overlap of judge=report separates claims that their cited passage supports from other claims: a
Markdown table over claims about the world of task=archive. Nothing is trained.

python scripts/report_table.py --seeds 11 12 13

Each claim cites one passage, which states a fact. `same`: the fact in the passage's words; `reworded`: in the other
wording of the world. The other kinds are wrong: `value`, `subject`: taken from another fact; `relation`: subject and
value of the fact with another relation; `negated`; `turned round`: subject and value swapped.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Iterator

from agentgrpo.core.chance import generator
from agentgrpo.core.types import Message, Passage, Task
from agentgrpo.judges.report.support import LexicalSupport
from agentgrpo.worlds.almanac.world import names
from agentgrpo.worlds.archive.world import ArchiveFact, draw_archive, words

TASK = Task(id="claims", messages=(Message(role="user", content="Tell all."),), references=())
KINDS = {"same": True, "reworded": True}
"""The kinds of correct claims."""


def claims(fact: ArchiveFact, other: ArchiveFact, told: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield (kind, claim) about a passage that states `fact` as `told`; `other` has the same relation."""

    def written(
        wording: str, *, noun: str = fact.relation, subject: str = fact.subject, value: str = fact.value
    ) -> str:
        return wording.format(noun=noun, subject=subject, value=value)

    drawn = rng.choice(words().facts)
    yield "same", told
    yield "reworded", next(text for text in map(written, words().facts) if text != told)
    yield "value", written(drawn, value=other.value)
    yield "subject", written(drawn, subject=other.subject)
    yield "relation", written(drawn, noun=rng.choice([name for name in words().relations if name != fact.relation]))
    yield "negated", written(drawn).replace(" is ", " is not ").replace(" has ", " has not ")
    yield "turned round", written(drawn, subject=fact.value, value=fact.subject)


async def shares(seed: int, min_score: float, count: int) -> dict[str, float]:
    """Kind -> share of its claims that are judged supported."""
    rng = generator("report table", seed)
    world = draw_archive(names("test"), 100, rng)
    facts = [f for of in world.facts.values() for f in of.values() if not f.is_lost and f.rule.told != "page"]
    support, supported, total = LexicalSupport(min_score=min_score), dict[str, int](), dict[str, int]()
    for fact in rng.sample(facts, count):
        told = rng.choice(words().facts).format(noun=fact.relation, subject=fact.subject, value=fact.value)
        others = [
            f for f in facts if f.relation == fact.relation and f.value != fact.value and f.subject != fact.subject
        ]
        for kind, claim in claims(fact, rng.choice(others), told, rng):
            total[kind] = total.get(kind, 0) + 1
            said = await support.supports(TASK, claim, [Passage(id=fact.id, text=told)])
            supported[kind] = supported.get(kind, 0) + said
    return {kind: supported[kind] / total[kind] for kind in total}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13])
    parser.add_argument("--min-score", type=float, nargs="+", default=[0.5])
    parser.add_argument("--claims", type=int, default=200, help="of each kind")
    options = parser.parse_args()
    for min_score in options.min_score:
        rows = [asyncio.run(shares(seed, min_score, options.claims)) for seed in options.seeds]
        print(f"\n| min_score {min_score:g} | called supported |\n| --- | --- |")
        for kind in rows[0]:
            found = [row[kind] for row in rows]
            about = "right" if kind in KINDS else "wrong"
            print(f"| {kind} ({about}) | {min(found):.1%} to {max(found):.1%} |")


if __name__ == "__main__":
    main()
