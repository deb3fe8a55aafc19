"""Rolling out: tasks to scored groups of episodes. Async, no torch."""

from agentgrpo.rollout.episodes import run_episode
from agentgrpo.rollout.groups import run_groups
from agentgrpo.rollout.metrics import rollout_clocks, rollout_metrics
from agentgrpo.rollout.scoring import Drop, episode_failures, keep_informative, refuse_failures, score_groups

__all__ = [
    "Drop",
    "episode_failures",
    "keep_informative",
    "refuse_failures",
    "rollout_clocks",
    "rollout_metrics",
    "run_episode",
    "run_groups",
    "score_groups",
]
