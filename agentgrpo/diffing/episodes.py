"""The first episode of a step that two runs do not share, and the first token in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

from agentgrpo.errors import DataError
from agentgrpo.records.difference import first_difference
from agentgrpo.records.run_dir import RunDir
from agentgrpo.records.trajectories import TrajectoryRecord, read_trajectories

_OUTCOMES = (
    "answer",
    "finish_reason",
    "error",
    "correctness",
    "reward",
    "reward_terms",
    "reward_branches",
    "advantage",
)
"""Fields that say what became of an episode, in the order in which they come about."""
_SHOWN = 60
"""Characters of a text from where it differs on."""


class _Token(NamedTuple):
    branch: int
    position: int
    message: int
    """Of the episode's messages."""
    role: str
    sampled: bool
    token: int
    logprob: float | None


def first_episode(a: RunDir, b: RunDir, step: int) -> dict[str, Any]:
    """{"what": ..., "id": of the episode, "a", "b", ...}. what: token or logprob, with its place; text, where no tokens
    were recorded; id, where other tasks were drawn; call; a field of the outcome; nothing, where all episodes are the
    same, so that it was the update; unknown, with "reason", where they cannot be compared."""
    files = [next((f.path for f in run.trajectory_files() if f.step == step), None) for run in (a, b)]
    if files[0] is None or files[1] is None:
        missing = [run.name for run, file in zip((a, b), files, strict=True) if file is None]
        return {"what": "unknown", "reason": f"{' and '.join(missing)} has no trajectories of the step"}
    try:
        for one, other in zip_longest(read_trajectories(files[0]), read_trajectories(files[1])):
            if found := _apart(one, other):
                return found
    except DataError as e:
        return {"what": "unknown", "reason": str(e)}
    return {"what": "nothing"}


def _apart(a: TrajectoryRecord | None, b: TrajectoryRecord | None) -> dict[str, Any] | None:
    if a is None or b is None or a.id != b.id:
        return {"what": "id", "id": (a or b).id, **_sides(a and a.id, b and b.id)}  # type: ignore[union-attr]
    found = _token_apart(a, b) if a.branches and b.branches else None
    if found := found or _text_apart(a, b):
        return {**found, "id": a.id}
    if (at := first_difference(a.agent["tools"], b.agent["tools"])) is not None:
        calls = [row.agent["tools"][at] if at < len(row.agent["tools"]) else None for row in (a, b)]
        return {"what": "call", "id": a.id, "call": at, **_sides(*calls)}
    for name in _OUTCOMES:
        if (before := getattr(a, name)) != (now := getattr(b, name)):
            return {"what": name, "id": a.id, **_sides(before, now)}
    return None


def _token_apart(a: TrajectoryRecord, b: TrajectoryRecord) -> dict[str, Any] | None:
    """Where the token sequences part, or, in equal ones, the first log-prob that differs."""
    logprob = None
    for one, other in zip_longest(_tokens(a), _tokens(b)):
        at = one or other
        assert at is not None
        place = {"branch": at.branch, "position": at.position, "message": at.message, "role": at.role}
        place["sampled"] = at.sampled
        if one is None or other is None or one[:-1] != other[:-1]:
            return {"what": "token", **place, **_sides(_token(a, one), _token(b, other))}
        if logprob is None and one.logprob != other.logprob:
            logprob = {"what": "logprob", **place, **_sides(_token(a, one), _token(b, other))}
    return logprob


def _token(record: TrajectoryRecord, token: _Token | None) -> dict[str, Any] | None:
    """As JSON, with the text of its message."""
    if token is None:
        return None
    text = record.agent["messages"][token.message]["content"]
    return {"token": token.token, "logprob": token.logprob, "text": text}


def _text_apart(a: TrajectoryRecord, b: TrajectoryRecord) -> dict[str, Any] | None:
    for i, (one, other) in enumerate(zip_longest(a.agent["messages"], b.agent["messages"])):
        if _said(one) != _said(other):
            at = one or other
            texts = [None if m is None else m["content"] for m in (one, other)]
            same = first_difference(*(text or "" for text in texts)) or 0
            shown = [None if text is None else text[same : same + _SHOWN] for text in texts]
            place = {"branch": at["branch"], "message": i, "role": at["role"], "sampled": at["sampled"]}
            return {"what": "text", **place, "character": same, **_sides(*shown)}
    return None


def _said(message: Mapping[str, Any] | None) -> tuple[Any, ...]:
    return () if message is None else (message["branch"], message["role"], message["content"])


def _tokens(record: TrajectoryRecord) -> Iterator[_Token]:
    message = -1
    for number, branch in enumerate(record.branches):
        position = 0
        for segment in branch.segments:
            message += 1
            for i, token in enumerate(segment.token_ids):
                logprob = None if segment.logprobs is None else segment.logprobs[i]
                yield _Token(number, position, message, segment.role, segment.sampled, token, logprob)
                position += 1


def _sides(a: Any, b: Any) -> dict[str, Any]:
    return {"a": a, "b": b}
