"""Literal tasks, segments and episodes for tests: no mocks, every value visible at the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentgrpo.core.types import Branch, Citation, Episode, EpisodeGroup, Exit, Message, Passage, Segment, Task


def task(question: str = "Who founded Velmor?", *references: str, id: str = "t0", **metadata: object) -> Task:
    return Task(
        id=id,
        messages=(Message(role="user", content=question),),
        references=references or ("Castin",),
        metadata=metadata,
        data_source="test",
    )


def passage(id: str, text: str, *, title: str = "", url: str = "", score: float | None = None) -> Passage:
    return Passage(id=id, text=text, title=title, url=url, score=score)


def given(*token_ids: int, role: str = "user") -> Segment:
    return Segment(role=role, token_ids=token_ids, sampled=False)  # type: ignore[arg-type]


def sampled(*token_ids: int, logprobs: Sequence[float] | None = None, version: int = 0) -> Segment:
    return Segment(
        role="assistant",
        token_ids=token_ids,
        sampled=True,
        logprobs=tuple(logprobs if logprobs is not None else [-0.5] * len(token_ids)),
        policy_version=version,
    )


def episode(
    of: Task | None = None,
    *segments: Segment,
    answer: str | None = "Castin",
    metrics: Mapping[str, float] | None = None,
    citations: Sequence[Citation] = (),
    retrieved: Sequence[str] = (),
    exit: Exit = Exit.ANSWERED,
    sample_index: int = 0,
) -> Episode:
    return Episode(
        task=of or task(),
        sample_index=sample_index,
        branches=(Branch(segments=segments or (given(1, 2), sampled(3, 4))),),
        answer=answer,
        exit=exit,
        metrics=dict(metrics or {}),
        citations=tuple(citations),
        retrieved_ids=tuple(retrieved),
    )


def group(*episodes: Episode) -> EpisodeGroup:
    return EpisodeGroup(task=episodes[0].task, episodes=tuple(episodes))
