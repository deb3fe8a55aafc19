"""Build training samples from scored groups: one sample per branch, with the advantage of its episode, branch or
turns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Protocol, TypeAlias

from agentgrpo.core.types import Branch, Episode, EpisodeGroup, RewardResult, ScoredGroup, TrainingSample
from agentgrpo.grpo.advantages import Branches, GroupRewards, TurnGroup, Turns
from agentgrpo.grpo.advantages import BranchGroup as BranchGroup

Credit: TypeAlias = float | tuple[float | None, ...] | None
"""One advantage for the whole episode, or one per turn; None = not trained on."""


class Credits(Protocol):
    """The part of Algorithm that computes advantages."""

    @property
    def credit(self) -> str: ...

    def advantages(self, groups: Sequence[GroupRewards]) -> Sequence[Sequence[float | None]]: ...

    def turn_advantages(self, groups: Sequence[TurnGroup]) -> Sequence[Sequence[Turns | None]]: ...

    def branch_advantages(self, groups: Sequence[BranchGroup]) -> Sequence[Sequence[Branches | None]]: ...


def group_advantages(scored: Sequence[ScoredGroup], algorithm: Credits) -> list[list[Credit]]:
    """Return the credit of each episode of every group, in order; None if the episode was not scored. A demonstration
    has credit 1, so that its policy gradient is the gradient of the cross entropy."""
    return [
        [1.0 if e.is_demonstrated else c for e, c in zip(g.group.episodes, credits, strict=True)]
        for g, credits in zip(scored, _of_seats(scored, algorithm), strict=True)
    ]


def _of_seats(scored: Sequence[ScoredGroup], algorithm: Credits) -> list[list[Credit]]:
    """Compute credit per seat: the branches of one seat across a group's episodes are treated as a separate group."""
    seats = [list(dict.fromkeys(seat for e in g.group.episodes for seat in e.seats)) for g in scored]
    apart = [[_seat_of(g, seat) for seat in names] or [g] for g, names in zip(scored, seats, strict=True)]
    credits = iter(_of_rewards([one for group in apart for one in group], algorithm))
    return [
        _together(g, names, [next(credits) for _ in group]) if names else next(credits)
        for g, names, group in zip(scored, seats, apart, strict=True)
    ]


def _seat_of(group: ScoredGroup, seat: str) -> ScoredGroup:
    """Return the part of a group that belongs to the seat: its branches and its rewards. An episode's reward is None if
    the seat took no turn in it."""
    episodes, rewards = [], []
    for episode, reward in zip(group.group.episodes, group.rewards, strict=True):
        is_of_seat = [branch.seat == seat for branch in episode.branches]
        of_seat = replace(
            episode, branches=tuple(b for b, own in zip(episode.branches, is_of_seat, strict=True) if own)
        )
        episodes.append(of_seat)
        rewards.append(None if reward is None or not of_seat.turns else _seat_reward(episode, reward, is_of_seat))
    return ScoredGroup(group=EpisodeGroup(task=group.group.task, episodes=tuple(episodes)), rewards=tuple(rewards))


def _seat_reward(episode: Episode, reward: RewardResult, is_of_seat: Sequence[bool]) -> RewardResult:
    branches = [r for r, own in zip(branch_rewards(episode, reward), is_of_seat, strict=True) if own]
    counts = [sum(s.sampled for s in branch.segments) for branch in episode.branches]
    owners = chain.from_iterable(repeat(own, n) for own, n in zip(is_of_seat, counts, strict=True))
    turns = [r for r, own in zip(turn_rewards(episode, reward), owners, strict=True) if own]
    total = branches[0]
    turns[-1] += math.fsum([total, *(-r for r in turns)])  # the last turn gets the reward that all seats share
    return replace(reward, total=total, turns=tuple(turns), branches=tuple(branches))


def _together(group: ScoredGroup, seats: Sequence[str], credits: Sequence[Sequence[Credit]]) -> list[Credit]:
    """Merge the credits of the seats into one credit per turn of each episode."""
    return [
        None if reward is None else _on_turns_of_seats(episode, dict(zip(seats, of_seats, strict=True)))
        for episode, reward, of_seats in zip(
            group.group.episodes, group.rewards, zip(*credits, strict=True), strict=True
        )
    ]


def _on_turns_of_seats(episode: Episode, credits: Mapping[str, Credit]) -> tuple[float | None, ...]:
    of_turns = {seat: iter(c) if isinstance(c, tuple) else repeat(c) for seat, c in credits.items()}
    return tuple(next(of_turns[b.seat]) for b in episode.branches for s in b.segments if s.sampled)


def _of_rewards(scored: Sequence[ScoredGroup], algorithm: Credits) -> list[list[Credit]]:
    if algorithm.credit == "turn":
        turns = [
            [None if r is None else turn_rewards(e, r) for e, r in zip(g.group.episodes, g.rewards, strict=True)]
            for g in scored
        ]
        return [list(group) for group in algorithm.turn_advantages(turns)]
    if algorithm.credit in ("branch", "position"):
        branches = [
            [None if r is None else branch_rewards(e, r) for e, r in zip(g.group.episodes, g.rewards, strict=True)]
            for g in scored
        ]
        return [
            [None if a is None else _on_turns(e, a) for e, a in zip(g.group.episodes, values, strict=True)]
            for g, values in zip(scored, algorithm.branch_advantages(branches), strict=True)
        ]
    rewards = [
        GroupRewards(
            totals=[None if r is None else r.total for r in group.rewards],
            terms=[{} if r is None else r.terms for r in group.rewards],
            grades=[None if r is None else r.correctness for r in group.rewards],
        )
        for group in scored
    ]
    return [list(group) for group in algorithm.advantages(rewards)]


def is_zero_variance(group: ScoredGroup, algorithm: Credits) -> bool:
    """Return whether no episode, turn or branch of the group gets any credit. The result depends on the advantage:
    under per_term, episodes with equal totals may differ in their terms; under `none`, the reward itself is the
    credit."""
    [credits] = group_advantages([group], algorithm)
    return not any(any(c) if isinstance(c, tuple) else c for c in credits)


def turn_rewards(episode: Episode, reward: RewardResult) -> Turns:
    """Return the reward of each turn. Raises ValueError if the number of turn rewards is not the number of turns."""
    num_turns = len(episode.turns)
    if not reward.turns and num_turns:
        return (*repeat(0.0, num_turns - 1), reward.total)
    if len(reward.turns) != num_turns:
        raise ValueError(
            f"task {episode.task.id}, sample {episode.sample_index}: {len(reward.turns)} rewards of turns for "
            f"{num_turns} turns"
        )
    return reward.turns


def branch_rewards(episode: Episode, reward: RewardResult) -> Branches:
    """Return the reward of each branch. Raises ValueError if the number of branch rewards is not the number of
    branches."""
    num_branches = len(episode.branches)
    if not reward.branches:
        return (reward.total,) * num_branches
    if len(reward.branches) != num_branches:
        raise ValueError(
            f"task {episode.task.id}, sample {episode.sample_index}: {len(reward.branches)} rewards of branches for "
            f"{num_branches} branches"
        )
    return reward.branches


def _on_turns(episode: Episode, advantages: Branches) -> Turns:
    """Assign each branch's advantage to every turn that was sampled in the branch."""
    pairs = zip(episode.branches, advantages, strict=True)
    return tuple(advantage for branch, advantage in pairs for segment in branch.segments if segment.sampled)


def _shared_prefix(branches: Sequence[Branch]) -> int:
    """Return the length of the token prefix that all branches share; it contains no sampled token."""
    n = min(b.num_prompt_tokens for b in branches)
    first = branches[0].token_ids[:n]
    for branch in branches[1:]:
        ids = branch.token_ids
        while first[:n] != ids[:n]:
            n -= 1
    return n


def to_samples(scored: Sequence[ScoredGroup], advantages: Sequence[Sequence[Credit]]) -> list[TrainingSample]:
    """Return one sample per branch of every scored episode; the group id of a sample is the task id."""
    samples: list[TrainingSample] = []
    for group, values in zip(scored, advantages, strict=True):
        rows = [(e, a) for e, a in zip(group.group.episodes, values, strict=True) if a is not None and e.branches]
        if not rows:
            continue
        shared = _shared_prefix([b for e, _ in rows for b in e.branches])
        samples += [
            TrainingSample(
                group_id=group.group.task.id,
                sample_index=episode.sample_index,
                token_ids=branch.token_ids,
                loss_mask=branch.loss_mask,
                rollout_logprobs=branch.logprobs,
                advantage=advantage,
                num_prompt_tokens=shared,
                policy_version=min(
                    (s.policy_version for s in branch.segments if s.policy_version is not None), default=None
                ),
                grammars=branch.grammars,
            )
            for episode, credit in rows
            for branch, advantage in zip(episode.branches, _of_branches(episode, credit), strict=True)
            if advantage is not None
        ]
    return samples


def _of_branches(
    episode: Episode, credit: float | tuple[float | None, ...]
) -> Iterator[float | tuple[float, ...] | None]:
    """Yield TrainingSample.advantage for each branch; None if no turn of the branch is trained on."""
    if not isinstance(credit, tuple):
        yield from repeat(credit, len(episode.branches))
        return
    turns = iter(credit)
    for branch in episode.branches:
        of_segments = [(next(turns) if s.sampled else 0.0, s) for s in branch.segments]
        if any(s.sampled and value is None for value, s in of_segments):
            yield None
        else:
            yield tuple(chain.from_iterable(repeat(value or 0.0, len(s.token_ids)) for value, s in of_segments))
