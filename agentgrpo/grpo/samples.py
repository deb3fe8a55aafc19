"""From scored groups to training samples: each branch flattened, with its episode's advantage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentgrpo.types import Branch, ScoredGroup, TrainingSample

Advantages = Sequence[float | None]


def group_advantages(
    scored: Sequence[ScoredGroup], estimate: Callable[[Advantages], list[float | None]]
) -> list[list[float | None]]:
    """One advantage per episode of every group, in order; None where the episode was not scored."""
    return [estimate([None if r is None else r.total for r in group.rewards]) for group in scored]


def _shared_prefix(branches: Sequence[Branch]) -> int:
    """Tokens that all branches open with, none of them sampled."""
    n = min(b.num_prompt_tokens for b in branches)
    first = branches[0].token_ids[:n]
    for branch in branches[1:]:
        ids = branch.token_ids
        while first[:n] != ids[:n]:
            n -= 1
    return n


def to_samples(scored: Sequence[ScoredGroup], advantages: Sequence[Advantages]) -> list[TrainingSample]:
    """A sample per branch of every scored episode; the group's id is its task's."""
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
                policy_version=min(s.policy_version for s in branch.segments if s.policy_version is not None),
            )
            for episode, advantage in rows
            for branch in episode.branches
        ]
    return samples
