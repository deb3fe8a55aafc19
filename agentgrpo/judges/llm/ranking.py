"""All episodes of a group in one prompt, graded side by side (as RULER does), by score or by rank.

    distinct attempts -> shuffled -> one verdict -> suspects graded alone -> scores, or ranks

The control (judges.llm.control) shows whether the model obeys an attempt, in its favour or against the others. Attempts
whose grades may follow an instruction are then graded alone, where no other attempt can reach them.

The shuffle depends on the seed, the task and the vote, but not on the order of the episodes. So no episode always has
the same position, and a repeated question gets the same verdict.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal

from agentgrpo.judges.llm.prompt import Trace, digest

Ranking = Literal["none", "scores", "ranks"]
Attempt = tuple[str, Trace]
"""An answer, and the trace that is shown before it."""


def order_of(attempts: Sequence[Attempt], *, task: str, seed: int, vote: int) -> tuple[Attempt, ...]:
    """The distinct attempts in the order in which they are shown."""
    shown = sorted(set(attempts))
    random.Random(digest("order", str(seed), task, str(vote))).shuffle(shown)
    return tuple(shown)


def ranks(scores: Mapping[Attempt, float], attempts: Sequence[Attempt]) -> dict[Attempt, float]:
    """Return for each attempt the share of the other attempts that are worse, equal ones counting half: the best gets
    1, the worst 0. An attempt that scores 0 gets 0 at any rank; a single attempt gets its score. attempts: all
    attempts, with repetitions."""
    if len(attempts) < 2:
        return dict(scores)
    found = {}
    for attempt, score in scores.items():
        worse = sum(scores[other] < score for other in attempts)
        equal = sum(scores[other] == score for other in attempts) - 1
        found[attempt] = (worse + equal / 2) / (len(attempts) - 1) if score > 0 else 0.0
    return found
