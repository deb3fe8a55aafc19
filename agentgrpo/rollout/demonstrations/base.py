"""What demonstrations are: episodes that are given to be imitated, in the place of those that a step would sample.

    Source (files, a task set) --by(policy)--> Demonstrations --show(tasks)--> [EpisodeGroup] of one episode each

No policy has sampled their turns, so these have no log-probs: `demonstrated` takes off what a script has put there.
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
    """Of one policy: in its own tokens."""

    tasks: Sequence[Task]
    """A step takes some of them (tasks.order)."""
    show: Callable[[Sequence[Task]], Coroutine[Any, Any, list[EpisodeGroup]]]
    """The episode of each, the same one every time."""
    notes: Sequence[str] = ()
    """What was left out, a line each; for the user."""


class Source(Protocol):
    """Where demonstrations come from. It is made before there is a policy, so that bad files cost nothing."""

    fingerprint: str
    """Hash of everything that determines them, but for the policy's tokenizer and renderer."""

    def by(self, policy: PolicyRunner, settings: RolloutSettings) -> Demonstrations:
        """As this policy would write them. Raises ConfigError or DataError where it cannot."""
        ...


def demonstrated(episode: Episode) -> Episode:
    """The episode, its turns no policy's."""
    return replace(
        episode,
        branches=tuple(Branch(segments=tuple(_unsampled(s) for s in branch.segments)) for branch in episode.branches),
    )


def _unsampled(segment: Segment) -> Segment:
    return replace(segment, logprobs=None, policy_version=None)
