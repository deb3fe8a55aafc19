"""Groups that are kept to be trained on again: what training needs of them, and the same as JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from agentgrpo.records.trajectories.packing import pack, unpack
from agentgrpo.types import Branch, Episode, EpisodeGroup, Exit, RewardResult, ScoredGroup, Task


def kept_for_replay(
    replay: Sequence[ScoredGroup], taught: Sequence[ScoredGroup], limit: int
) -> tuple[ScoredGroup, ...]:
    """The newest `limit` groups, oldest first, after a step whose own groups `taught` something."""
    return (*replay, *map(_slim, taught))[-limit:] if limit else ()


def to_replay(replay: Sequence[ScoredGroup], count: int, *, taken: Collection[str]) -> list[ScoredGroup]:
    """Up to `count` groups, the newest first; none of a task that is `taken`, and no task twice."""
    found: dict[str, ScoredGroup] = {}
    for group in reversed(replay):
        if group.group.task.id not in taken:
            found.setdefault(group.group.task.id, group)
    return list(found.values())[: max(0, count)]


def _slim(group: ScoredGroup) -> ScoredGroup:
    """Without what only readers and rewards need."""
    task = Task(id=group.group.task.id, messages=(), references=())
    episodes = [
        Episode(
            task=task,
            sample_index=e.sample_index,
            branches=tuple(Branch(segments=tuple(replace(s, text="") for s in b.segments)) for b in e.branches),
            answer=None,
            exit=e.exit,
            metrics={},
        )
        for e in group.group.episodes
    ]
    return ScoredGroup(group=EpisodeGroup(task=task, episodes=tuple(episodes)), rewards=group.rewards)


def to_json(group: ScoredGroup) -> dict[str, Any]:
    """Of a group that was kept for replay; `from_json` gives an equal one back."""
    return {
        "task": group.group.task.id,
        "episodes": [
            {
                "sample_index": episode.sample_index,
                "exit": episode.exit.value,
                "segments": [
                    {
                        "branch": i,
                        "role": s.role,
                        "sampled": s.sampled,
                        "num_tokens": len(s.token_ids),
                        "policy_version": s.policy_version,
                        "cut_short": s.cut_short,
                        "content": s.text,
                    }
                    for i, branch in enumerate(episode.branches)
                    for s in branch.segments
                ],
                "tokens": pack(episode.branches),
                "reward": None if reward is None else _lists(asdict(reward)),
            }
            for episode, reward in zip(group.group.episodes, group.rewards, strict=True)
        ],
    }


def from_json(row: Mapping[str, Any]) -> ScoredGroup:
    task = Task(id=row["task"], messages=(), references=())
    episodes = [
        Episode(
            task=task,
            sample_index=e["sample_index"],
            branches=unpack(e["segments"], e["tokens"]),
            answer=None,
            exit=Exit(e["exit"]),
            metrics={},
        )
        for e in row["episodes"]
    ]
    rewards = [None if e["reward"] is None else RewardResult(**_tuples(e["reward"])) for e in row["episodes"]]
    return ScoredGroup(group=EpisodeGroup(task=task, episodes=tuple(episodes)), rewards=tuple(rewards))


def _lists(value: Any) -> Any:
    """Tuples as JSON has them."""
    if isinstance(value, Mapping):
        return {k: _lists(v) for k, v in value.items()}
    return [_lists(v) for v in value] if isinstance(value, (list, tuple)) else value


def _tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _tuples(v) for k, v in value.items()}
    return tuple(_tuples(v) for v in value) if isinstance(value, (list, tuple)) else value
