"""Scored groups to a trajectory file."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgrpo.durable import write_each_atomic
from agentgrpo.protocol import Status, group_status, status_of
from agentgrpo.records.trajectories.encoding import foreign, line, members, numbers, string
from agentgrpo.records.trajectories.packing import pack
from agentgrpo.records.trajectories.record import SCHEMA_VERSION
from agentgrpo.types import Episode, Exit, Failure, RewardResult, ScoredGroup, Segment, Task

_FINISH_REASONS = {Exit.TIMEOUT: "timeout", Exit.ERROR: "error", Exit.CONTEXT_OVERFLOW: "length"}


def write_trajectories(
    path: Path,
    *,
    scored: Sequence[ScoredGroup],
    advantages: Sequence[Sequence[float | Sequence[float] | None]],
    dropped: Sequence[str | None],
    step: int,
    seed: int,
    split: str = "train",
    agent_name: str = "",
    record_tokens: bool = True,
) -> None:
    """Write `path` and its timings companion, each atomically (StorageError). advantages[i][j], one or one for
    each turn, belongs to episode j of scored[i], dropped[i] to the whole group."""
    lines: list[str] = []
    clocks: list[str] = []
    lengths: list[int] = []
    for group, group_advantages, reason in zip(scored, advantages, dropped, strict=True):
        ends = _ends(group)
        of_group = members(
            _task(group.group.task)
            | {"step": step, "split": split, "seed": seed, "dropped": reason}
            | {"group_status": group_status(end["status"] for end in ends)}
        )
        for episode, reward, advantage, end in zip(
            group.group.episodes, group.rewards, group_advantages, ends, strict=True
        ):
            identity = f"{episode.task.id}/{episode.sample_index}"
            row = {
                "id": identity,
                "sample_index": episode.sample_index,
                **end,
                **_texts(episode),
                "memory": [foreign(written) for written in episode.memory],
                "correctness": reward.correctness if reward else None,
                "reward": reward.total if reward else None,
                "reward_branches": reward.branches if reward else (),
                "advantage": advantage,
                "tokens": pack(episode.branches) if record_tokens else None,
            }
            texts = (members(row), of_group, _numbers(episode, reward), f'"agent":{_agent(episode, agent_name)}')
            lines.append(f"{{{','.join(texts)}}}")
            clocks.append(line({"id": identity, **episode.timings, **_seconds(episode)}))
            lengths.append(row["response_len"])
    rewards = [reward.total for group in scored for reward in group.rewards if reward]
    summary = {
        "schema_version": SCHEMA_VERSION,
        "split": split,
        "step": step,
        "total": len(lines),
        "scored": len(rewards),
        "reward": _spread(rewards),
        "response_len": _spread(lengths),
    }
    companion = path.with_suffix(".timings.jsonl")
    write_each_atomic({path: _text([line(summary), *lines]), companion: _text(clocks)})


def _task(task: Task) -> dict[str, Any]:
    return {
        "group": task.id,
        "task": task.id,
        "data_source": task.data_source,
        "metadata": foreign(task.metadata),
        "prompt_messages": [_message(m.role, m.content, m.tool_calls) for m in task.messages],
        "references": task.references,
    }


def _ends(group: ScoredGroup) -> list[dict[str, Any]]:
    """How each episode ended. One that its judge failed on has failed, however it was finished."""
    judged = group.failures or (None,) * len(group.rewards)
    return [_end(e, e.failure or failure) for e, failure in zip(group.group.episodes, judged, strict=True)]


def _end(episode: Episode, failure: Failure | None) -> dict[str, Any]:
    finish_reason = _FINISH_REASONS.get(episode.exit, "stop")
    return {
        "status": Status.FAILED if failure else status_of(finish_reason),
        "finish_reason": finish_reason,
        "error": {"kind": failure.kind, "stage": failure.stage, "message": failure.message} if failure else None,
    }


def _texts(episode: Episode) -> dict[str, Any]:
    segments = [s for b in episode.branches for s in b.segments]
    versions = [s.policy_version for s in segments if s.policy_version is not None]
    opening = itertools.takewhile(lambda s: not s.sampled, episode.branches[0].segments if episode.branches else ())
    return {
        "rendered_prompt": "".join(s.text for s in opening),
        "response": "".join(s.text for s in segments if s.sampled),
        "answer": episode.answer,
        "prompt_len": episode.branches[0].num_prompt_tokens if episode.branches else 0,
        "response_len": sum(b.num_sampled_tokens for b in episode.branches),
        "citations": [{"doc_id": c.doc_id, "marker": c.marker, "text": c.text} for c in episode.citations],
        "retrieved_ids": episode.retrieved_ids,
        "policy_version": min(versions, default=None),
    }


def _message(role: str, content: str, calls: Sequence[Any]) -> dict[str, Any]:
    called = [{"name": call.name, "arguments": foreign(call.arguments)} for call in calls]
    return {"role": role, "content": content} | ({"tool_calls": called} if called else {})


def _numbers(episode: Episode, reward: RewardResult | None) -> str:
    """The members that are names and numbers, as text."""
    terms = reward.terms if reward else {}
    costs = {name: 0.0 - value for name, value in terms.items() if name.endswith("_cost")}
    return (
        f'"metrics":{numbers(episode.metrics)},"costs":{numbers(costs)},"reward_terms":{numbers(terms)},'
        f'"reward_dimensions":{numbers(reward.dimensions if reward else {})}'
    )


def _agent(episode: Episode, name: str) -> str:
    """The object "agent", as text."""
    rest = {
        "name": name,
        "exit": episode.exit.value,
        "tool_turns": int(episode.metrics.get("tool_turns", len({r.turn for r in episode.tool_records}))),
        "tools": [
            {
                "name": r.name,
                "arguments": foreign(r.arguments),
                "outcome": r.outcome.value,
                "turn": r.turn,
                "num_results": r.num_results,
                "result_ids": r.result_ids,
                "cached": r.cached,
                "detail": r.detail,
                "num_bytes": r.num_bytes,
                "was_cut": r.was_cut,
                "cost": r.cost,
            }
            for r in episode.tool_records
        ],
    }
    messages = ",".join([_segment(i, s) for i, branch in enumerate(episode.branches) for s in branch.segments])
    return f'{{{members(rest)},"messages":[{messages}]}}'


def _seconds(episode: Episode) -> dict[str, list[float]]:
    """Of each entry of "tools", where an agent takes the time of single calls."""
    seconds = [r.seconds for r in episode.tool_records]
    return {"tools": seconds} if any(seconds) else {}


def _segment(branch: int, s: Segment) -> str:
    """An entry of "messages", as text: the most frequent object of a file, so it does without an encoder's detour."""
    sampled = "true" if s.sampled else "false"
    version = "null" if s.policy_version is None else s.policy_version
    cut_short = ',"cut_short":true' if s.cut_short else ""
    return (
        f'{{"branch":{branch},"role":{string(s.role)},"sampled":{sampled},"num_tokens":{len(s.token_ids)},'
        f'"policy_version":{version}{cut_short},"content":{string(s.text)}}}'
    )


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean, population standard deviation, largest and smallest; null without values or with one that is not finite."""
    if not values or not all(math.isfinite(v) for v in values):
        return dict.fromkeys(("mean", "std", "max", "min"))
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
    return {"mean": mean, "std": std, "max": max(values), "min": min(values)}


def _text(lines: Sequence[str]) -> bytes:
    return "".join(f"{text}\n" for text in lines).encode()
