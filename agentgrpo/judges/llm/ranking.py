"""All episodes of a group in one prompt, graded side by side (as RULER does), by score or by rank.

    attempts, each once -> in an order of their own -> one verdict -> suspects by themselves -> scores, or ranks

The control (judges.llm.control) shows whether the model obeys an attempt, for itself or against the others. Then those
that it may have graded by an order are graded by themselves, where no other attempt can reach them.

The order depends on the seed, the task and the vote, and not on which episode is which. So no position is always the
same one's, and the verdict is the same however often it is asked for.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal

from agentgrpo.judges.llm.prompt import Trace, digest

Ranking = Literal["none", "scores", "ranks"]
Attempt = tuple[str, Trace]
"""An answer, and what is shown of the way to it."""


def order_of(attempts: Sequence[Attempt], *, task: str, seed: int, vote: int) -> tuple[Attempt, ...]:
    """The distinct attempts as they are shown."""
    shown = sorted(set(attempts))
    random.Random(digest("order", str(seed), task, str(vote))).shuffle(shown)
    return tuple(shown)


def ranks(scores: Mapping[Attempt, float], attempts: Sequence[Attempt]) -> dict[Attempt, float]:
    """The share of the other attempts that are worse, of equal ones half: the best is 1, the worst 0. One that scores 0
    is 0 wherever it stands, and a single attempt is its score. attempts: equal ones as often as there are."""
    if len(attempts) < 2:
        return dict(scores)
    found = {}
    for attempt, score in scores.items():
        worse = sum(scores[other] < score for other in attempts)
        equal = sum(scores[other] == score for other in attempts) - 1
        found[attempt] = (worse + equal / 2) / (len(attempts) - 1) if score > 0 else 0.0
    return found
