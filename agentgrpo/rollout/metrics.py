"""Aggregate a step's episodes: tags for metrics.jsonl, and the clock times, which are stored elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, pstdev

from agentgrpo.core.types import Episode, ScoredGroup
from agentgrpo.rollout.scoring import Drop, episode_failures
from agentgrpo.tasks.suite import member_of

LEAST_EPISODES = 32
_OF_TOOLS = frozenset({"tool_calls", "failed_calls"})
_OF_PROGRAMS = frozenset({"branches", "trained_branches", "continued_share"})
"""Metric names that a custom environment may also use; they are treated as program metrics only if all are present."""


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for row in rows for name in row})
    return {name: fmean(row.get(name, 0.0) for row in rows) for name in names}


def _spread(prefix: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {f"{prefix}/mean": fmean(values), f"{prefix}/min": min(values), f"{prefix}/max": max(values)}


def _episodes(scored: Iterable[ScoredGroup]) -> list[Episode]:
    return [e for group in scored for e in group.group.episodes if e.failure is None]


def rollout_metrics(
    scored: Sequence[ScoredGroup], reasons: Sequence[Drop | None], cost_of: Callable[[Episode], float]
) -> dict[str, float]:
    """Tags: reward/*, correctness, agent/*, program/*, cost/*, tool_turns/*, tools/*, tokens/*, groups/*, failures/*.

    Means are taken over the scored episodes; unscored episodes are counted, and never averaged in as 0. cost_of: an
    episode -> the cost of its calls.
    """
    episodes = _episodes(scored)
    rewards = [r for group in scored for r in group.rewards if r is not None]
    tags: dict[str, float] = {
        "episodes/total": float(sum(len(g.rewards) for g in scored)),
        "episodes/scored": float(len(rewards)),
        "groups/total": float(len(scored)),
    }
    for reason in Drop:
        tags[f"groups/{reason}"] = float(sum(r is reason for r in reasons))
    tags["groups/filtered"] = float(sum(r is not None for r in reasons))
    tags["groups/informative"] = 1 - tags["groups/filtered"] / max(1, len(scored))
    for kind, count in Counter(f.kind for f in episode_failures(scored)).items():
        tags[f"failures/{kind}"] = float(count)
    if rewards:
        totals = [r.total for r in rewards]
        tags |= {"reward/mean": fmean(totals), "reward/std": pstdev(totals)}
        tags["correctness"] = fmean(r.correctness for r in rewards)
        tags |= {f"reward/term/{k}": v for k, v in _means([r.terms for r in rewards]).items()}
        tags |= {f"reward/dimension/{k}": v for k, v in _means([r.dimensions for r in rewards]).items()}
        for name in sorted({name for r in rewards for name in r.parts}):  # tasks may have criteria of their own
            tags[f"reward/criterion/{name}"] = fmean(r.parts[name] for r in rewards if name in r.parts)
    if episodes:
        tags["episodes/truncated"] = float(sum(e.is_truncated for e in episodes))
        tags |= {f"agent/{k}": v for k, v in _means([e.metrics for e in episodes]).items()}
        costs = [cost_of(e) for e in episodes]
        tags |= {"cost/episode": fmean(costs), "cost/step": sum(costs)}
        tags |= _spread("tool_turns", [e.metrics.get("tool_turns", 0.0) for e in episodes])
        tags |= _tool_tags([e.metrics for e in episodes if e.metrics.keys() >= _OF_TOOLS])
        tags |= _program_tags([e.metrics for e in episodes if e.metrics.keys() >= _OF_PROGRAMS])
        sampled = [sum(b.num_sampled_tokens for b in e.branches) for e in episodes]
        trained = sum(b.num_trained_tokens for e in episodes for b in e.branches)
        tokens = sum(len(b.token_ids) for e in episodes for b in e.branches)
        tags |= _spread("response_len", [float(n) for n in sampled])
        tags["tokens/sampled"] = float(sum(sampled))
        tags["tokens/total"] = float(tokens)
        tags["tokens/trainable_ratio"] = trained / max(tokens, 1)
    return tags


_OF_MEMBERS = ("agent/", "reward/term/", "reward/dimension/")
"""Prefixes of tags that some members of a suite may lack, so that a mean over all members would be meaningless."""


def suite_metrics(
    tags: Mapping[str, float],
    scored: Sequence[ScoredGroup],
    reasons: Sequence[Drop | None],
    cost_of: Callable[[Episode], float],
) -> dict[str, float]:
    """Return the `tags` over all groups of a suite, except for member-specific tags missing in some members of the
    step, plus the tags of each member: suite/NAME/reward/mean, ..."""
    by_member: dict[str, list[int]] = {}
    for i, group in enumerate(scored):
        by_member.setdefault(member_of(group.group.task), []).append(i)
    own = {
        member: rollout_metrics([scored[i] for i in rows], [reasons[i] for i in rows], cost_of)
        for member, rows in sorted(by_member.items())
    }
    found = {k: v for k, v in tags.items() if not k.startswith(_OF_MEMBERS) or all(k in of for of in own.values())}
    return found | {f"suite/{member}/{k}": v for member, of in own.items() for k, v in of.items()}


def start_tags(scored: Sequence[ScoredGroup], reasons: Sequence[Drop | None]) -> dict[str, float]:
    """Return start/signal for the first step of a run: 0 if no episode is right or earns a reward and no group has a
    gradient, else 1. Returns nothing for fewer than LEAST_EPISODES scored episodes, which may all be wrong by
    chance."""
    rewards = [r for group in scored for r in group.rewards if r is not None]
    if len(rewards) < LEAST_EPISODES:
        return {}
    return {"start/signal": float(any(max(r.correctness, r.total) > 0 for r in rewards) or None in reasons)}


def _tool_tags(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return calls per episode and failed calls per call, for agents that count them, under the tag names that TRL
    uses."""
    if not rows:
        return {}
    calls, failed = sum(row["tool_calls"] for row in rows), sum(row["failed_calls"] for row in rows)
    return {"tools/call_frequency": calls / len(rows), "tools/failure_frequency": failed / calls if calls else 0.0}


def _program_tags(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Show whether the requests of programs form one growing conversation: branches per episode, trained branches per
    episode, and the share of requests that continued a conversation."""
    means = _means(rows)
    return {f"program/{name}": means[name] for name in sorted(_OF_PROGRAMS) if rows}


def rollout_clocks(scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """Return the mean seconds per episode by stage (time_generate, time_tools, time_queue)."""
    return {"time_tools": 0.0} | _means([e.timings for e in _episodes(scored)])
