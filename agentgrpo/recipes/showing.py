"""What a run shows of its work besides numbers: the stages of a warm start, and an episode of the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentgrpo.records.screen import Screen
from agentgrpo.types import ScoredGroup


def show_stages(screen: Screen) -> Callable[[str, int, int], None]:
    """Called with (stage, units done, units in all) it shows where a warm start stands."""
    stage, shown = "", 0

    def show(name: str, done: int, total: int) -> None:
        nonlocal stage, shown
        if name != stage:
            screen.stage(name, total)
            stage, shown = name, 0
        screen.advance(done - shown)
        shown = done

    return show


def show_episode(screen: Screen, scored: Sequence[ScoredGroup]) -> None:
    """The first episode of a step that was scored, with its reward."""
    for group in scored:
        for episode, reward in zip(group.group.episodes, group.rewards, strict=True):
            if episode.branches and reward is not None:
                text = "".join(s.text for s in episode.branches[0].segments)
                screen.trajectory(f"{text}\nreference: {episode.task.references[0]}  reward: {reward.total:+.3f}")
                return
