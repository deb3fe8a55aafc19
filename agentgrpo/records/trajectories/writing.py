"""Scored groups to a trajectory file."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgrpo.durable import write_atomic
from agentgrpo.errors import DataError
from agentgrpo.records.trajectories.packing import pack
from agentgrpo.records.trajectories.record import SCHEMA_VERSION
from agentgrpo.types import Episode, Exit, Failure, RewardResult, ScoredGroup

_MAX_DEPTH = 64
_DEEPEST_HOME = 4
"""Levels of the line above a tool call's arguments."""
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_FINISH_REASONS = {Exit.TIMEOUT: "timeout", Exit.ERROR: "error", Exit.CONTEXT_OVERFLOW: "length"}


def write_trajectories(
    path: Path,
    *,
    scored: Sequence[ScoredGroup],
    advantages: Sequence[Sequence[float | None]],
    dropped: Sequence[str | None],
    step: int,
    seed: int,
    split: str = "train",
    agent_name: str = "",
    record_tokens: bool = True,
) -> None:
    """Write `path` and its timings companion, each atomically (StorageError). advantages[i][j] belongs to episode j of
    scored[i], dropped[i] to the whole group."""
    rows: list[dict[str, Any]] = []
    clocks: list[dict[str, Any]] = []
    for group, group_advantages, reason in zip(scored, advantages, dropped, strict=True):
        failures = group.failures or (None,) * len(group.rewards)
        for episode, reward, advantage, failure in zip(
            group.group.episodes, group.rewards, group_advantages, failures, strict=True
        ):
            rows.append(
                {
                    **_identity(episode, step=step, split=split, seed=seed),
                    **_end(episode, episode.failure or failure, reason),
                    **_texts(episode),
                    **_credit(reward, advantage),
                    "agent": _agent(episode, agent_name),
                    "tokens": pack(episode.branches) if record_tokens else None,
                }
            )
            clocks.append({"id": rows[-1]["id"], **episode.timings})
    summary = {
        "schema_version": SCHEMA_VERSION,
        "split": split,
        "step": step,
        "total": len(rows),
        "scored": sum(row["reward"] is not None for row in rows),
        "reward": _spread([row["reward"] for row in rows if row["reward"] is not None]),
        "response_len": _spread([row["response_len"] for row in rows]),
    }
    write_atomic(path, _lines([summary, *rows]))
    write_atomic(path.with_suffix(".timings.jsonl"), _lines(clocks))


def _identity(episode: Episode, *, step: int, split: str, seed: int) -> dict[str, Any]:
    task = episode.task
    versions = [s.policy_version for b in episode.branches for s in b.segments if s.policy_version is not None]
    return {
        "id": f"{task.id}/{episode.sample_index}",
        "group": task.id,
        "task": task.id,
        "sample_index": episode.sample_index,
        "data_source": task.data_source,
        "metadata": _foreign(task.metadata),
        "step": step,
        "split": split,
        "policy_version": min(versions, default=None),
        "seed": seed,
    }


def _end(episode: Episode, failure: Failure | None, dropped: str | None) -> dict[str, Any]:
    return {
        "status": "failed" if failure else "completed",
        "finish_reason": _FINISH_REASONS.get(episode.exit, "stop"),
        "error": {"kind": failure.kind, "stage": failure.stage, "message": failure.message} if failure else None,
        "dropped": dropped,
    }


def _texts(episode: Episode) -> dict[str, Any]:
    segments = [s for b in episode.branches for s in b.segments]
    opening = itertools.takewhile(lambda s: not s.sampled, episode.branches[0].segments if episode.branches else ())
    return {
        "prompt_messages": [_message(m.role, m.content, m.tool_calls) for m in episode.task.messages],
        "rendered_prompt": "".join(s.text for s in opening),
        "references": episode.task.references,
        "response": "".join(s.text for s in segments if s.sampled),
        "answer": episode.answer,
        "prompt_len": episode.branches[0].num_prompt_tokens if episode.branches else 0,
        "response_len": sum(b.num_sampled_tokens for b in episode.branches),
        "citations": [{"doc_id": c.doc_id, "marker": c.marker, "text": c.text} for c in episode.citations],
        "retrieved_ids": episode.retrieved_ids,
        "metrics": dict(sorted(episode.metrics.items())),
    }


def _message(role: str, content: str, calls: Sequence[Any]) -> dict[str, Any]:
    called = [{"name": call.name, "arguments": _foreign(call.arguments)} for call in calls]
    return {"role": role, "content": content} | ({"tool_calls": called} if called else {})


def _credit(reward: RewardResult | None, advantage: float | None) -> dict[str, Any]:
    terms = reward.terms if reward else {}
    return {
        "correctness": reward.correctness if reward else None,
        "reward": reward.total if reward else None,
        "reward_terms": dict(sorted(terms.items())),
        "reward_dimensions": dict(sorted(reward.dimensions.items())) if reward else {},
        "advantage": advantage,
        "costs": {name: 0.0 - value for name, value in sorted(terms.items()) if name.endswith("_cost")},
    }


def _agent(episode: Episode, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "exit": episode.exit.value,
        "tool_turns": int(episode.metrics.get("tool_turns", len({r.turn for r in episode.tool_records}))),
        "messages": [
            {
                "branch": i,
                "role": s.role,
                "sampled": s.sampled,
                "num_tokens": len(s.token_ids),
                "policy_version": s.policy_version,
                "content": s.text,
            }
            for i, branch in enumerate(episode.branches)
            for s in branch.segments
        ],
        "tools": [
            {
                "name": r.name,
                "arguments": _foreign(r.arguments),
                "outcome": r.outcome.value,
                "turn": r.turn,
                "num_results": r.num_results,
                "result_ids": r.result_ids,
                "cached": r.cached,
                "detail": r.detail,
            }
            for r in episode.tool_records
        ],
    }


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean, population standard deviation, largest and smallest; null without values or with one that is not finite."""
    if not values or not all(math.isfinite(v) for v in values):
        return dict.fromkeys(("mean", "std", "max", "min"))
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
    return {"mean": mean, "std": std, "max": max(values), "min": min(values)}


def _lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(_line(row) + "\n" for row in rows).encode()


def _line(row: Mapping[str, Any]) -> str:
    try:
        return _ENCODER.encode(row)
    except ValueError:  # a number that is not finite: rare, and dear to look for
        return _ENCODER.encode(_plain(row))


def _foreign(value: Any) -> Any:
    """What this module did not shape itself, with its keys sorted: the bytes of a file depend on the values alone."""
    return _plain(value, depth=_DEEPEST_HOME)


def _plain(value: Any, depth: int = 0) -> Any:
    """`value` as JSON that any reader takes: arguments come from a policy, metadata from a user."""
    if depth > _MAX_DEPTH:
        return f"[more than {_MAX_DEPTH} levels deep]"
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        pairs = ((str(k), _plain(v, depth + 1)) for k, v in value.items())
        return dict(sorted(pairs, key=lambda pair: pair[0]) if depth else pairs)
    if isinstance(value, (list, tuple)):
        return [_plain(v, depth + 1) for v in value]
    raise DataError(f"a trajectory cannot hold a {type(value).__name__}; metadata and arguments must be plain JSON")
