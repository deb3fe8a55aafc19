"""Memory agents' episodes as they are counted, for tests of rewards: what was done to each of four chunks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from agentgrpo.core.types import Branch, Episode, EpisodeGroup, Exit
from agentgrpo.environments.memory.metrics import by_turn, episode_metrics
from agentgrpo.tasks.dialogue import Question, join, memory_task
from tests.builders import given, sampled

WANTED = (2, 0, 1, 2)
"""Of each chunk, how many changes it asks for; the second one is idle talk."""
TASK = memory_task(
    "m",
    chunks=["Velmor lives in Castin. Orlin has a boat.", "Nice day!", "Velmor moved to Dran.", "A mill. A cat."],
    questions=[
        Question(text="Velmor lives in ___", answers=("Dran",)),
        Question(text="Orlin has ___", answers=("boat",)),
    ],
    data_source="test",
)
RIGHT, HALF, WRONG, EMPTY = ("Dran", "a boat"), ("Dran", "x"), ("x", "y"), ("", "")
CHUNK_TOKENS = 200


def chunk(calls: int = 0, executed: int = 0, valid: int = 0, **other: int) -> Counter[str]:
    """All that was executed was judged."""
    return Counter(calls=calls, executed=executed, judged=executed, valid=valid, **other)


def writer(
    *chunks: Counter[str],
    answers: tuple[str, ...],
    memory_tokens: int,
    is_empty: bool | None = None,
    knows: bool = True,
    sample_index: int = 0,
) -> Episode:
    """is_empty: None = where there are no tokens."""
    counts = [
        count + Counter(wanted=wanted, knows_wanted=1) if knows else count
        for count, wanted in zip(chunks, WANTED, strict=True)
    ]
    return Episode(
        task=TASK,
        sample_index=sample_index,
        branches=tuple(Branch(segments=(given(1, 10 + t), sampled(2, 3))) for t in range(len(chunks))),
        answer=join(answers),
        exit=Exit.ANSWERED,
        metrics=episode_metrics(
            counts,
            questions=len(answers),
            is_empty=memory_tokens == 0 if is_empty is None else is_empty,
            entries=float(memory_tokens > 0),
            memory_tokens=float(memory_tokens),
            chunk_tokens=CHUNK_TOKENS,
        ),
        metrics_by_turn=by_turn(counts),
    )


SKIP = chunk(calls=1, skips=1)
GOOD = writer(chunk(2, 2, 2), SKIP, chunk(1, 1, 1), chunk(2, 2, 2), answers=RIGHT, memory_tokens=40)
FLAWED = writer(chunk(2, 2, 2), SKIP, chunk(1, 1, 1), chunk(2, 1, 1, stray=1), answers=RIGHT, memory_tokens=40)
"""A call of the last chunk fails, and it holds other text."""
EVERYTHING = writer(
    chunk(4, 4, 2), chunk(2, 2, 0), chunk(3, 3, 1), chunk(4, 4, 2), answers=HALF, memory_tokens=220
)  # fmt: skip
SILENT = writer(*[chunk()] * 4, answers=EMPTY, memory_tokens=0)
SKIPPING = writer(*[SKIP] * 4, answers=EMPTY, memory_tokens=0)
FAILING = writer(*[chunk(2, 0, failed_calls=2)] * 4, answers=EMPTY, memory_tokens=0)
BABBLING = writer(*[chunk(stray=1)] * 4, answers=EMPTY, memory_tokens=0)
JUNK = writer(*[chunk(1, 1, 0)] * 4, answers=EMPTY, memory_tokens=40, is_empty=True)
JUNK_AND_TEXT = writer(*[chunk(1, 1, 0, stray=1)] * 4, answers=EMPTY, memory_tokens=40, is_empty=True)
ONE_OF_JUNK = writer(chunk(1, 1, 0), *[SKIP] * 3, answers=EMPTY, memory_tokens=10, is_empty=True)
DELETED = writer(chunk(2, 2, 2), SKIP, chunk(1, 1, 1), chunk(3, 3, 0), answers=EMPTY, memory_tokens=0)
"""All that was right, until the last chunk."""
ONE_OF_GOOD = writer(chunk(2, 2, 2), *[chunk()] * 3, answers=HALF, memory_tokens=20)


def group_of(*episodes: Episode) -> EpisodeGroup:
    return EpisodeGroup(task=TASK, episodes=tuple(replace(e, sample_index=i) for i, e in enumerate(episodes)))
