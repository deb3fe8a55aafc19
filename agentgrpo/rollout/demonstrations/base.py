"""Demonstrations: given episodes to imitate, used in place of the episodes that a step would sample.

    Source (files, a task set) --by(policy)--> Demonstrations --show(tasks)--> [EpisodeGroup] of one episode each

No policy sampled these turns, so they have no log-probs: `demonstrated` removes those that a script has filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from agentgrpo.config.settings import RolloutSettings
from agentgrpo.core.types import Branch, Episode, EpisodeGroup, Segment, Task
from agentgrpo.rollout.loop import PolicyRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """Demonstrations for one policy, written in its tokens."""

    tasks: Sequence[Task]
    """The tasks from which each step selects some (tasks.order)."""
    show: Callable[[Sequence[Task]], Coroutine[Any, Any, list[EpisodeGroup]]]
    """Return the episode of each task; always the same one for a task."""
    notes: Sequence[str] = ()
    """Lines for the user about what was left out."""


class Source(Protocol):
    """A source of demonstrations. It is created before the policy exists, so that bad files are found at no cost."""

    fingerprint: str
    """Hash of everything that determines the demonstrations, except for the policy's tokenizer and renderer."""

    def by(self, policy: PolicyRunner, settings: RolloutSettings) -> Demonstrations:
        """Return the demonstrations as this policy would write them. Raises ConfigError or DataError if it cannot write
        them."""
        ...


def demonstrated(episode: Episode) -> Episode:
    """Return the episode with its turns marked as not sampled by any policy."""
    return replace(
        episode,
        branches=tuple(Branch(segments=tuple(_unsampled(s) for s in branch.segments)) for branch in episode.branches),
    )


def _unsampled(segment: Segment) -> Segment:
    return replace(segment, logprobs=None, policy_version=None)
