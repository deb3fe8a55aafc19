"""What a step's episodes add up to: tags for metrics.jsonl, and the clocks that go elsewhere."""

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
"""Metrics that an environment of a user's own may give too: one of them alone is its own."""


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

    Means are over the episodes that were scored; what could not be scored is counted, never averaged in as 0.
    cost_of: an episode -> what its calls cost.
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
"""How tags begin that another member of a suite may not have, so that a mean over all would mean nothing."""


def suite_metrics(
    tags: Mapping[str, float],
    scored: Sequence[ScoredGroup],
    reasons: Sequence[Drop | None],
    cost_of: Callable[[Episode], float],
) -> dict[str, float]:
    """`tags` of all groups of a suite, without those that some members of the step do not have, and each member's own:
    suite/NAME/reward/mean, ..."""
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
    """start/signal of a run's first step: 0 where no episode is right or earns anything and no group has a gradient,
    else 1. Nothing for fewer than LEAST_EPISODES, of which all may be wrong by chance."""
    rewards = [r for group in scored for r in group.rewards if r is not None]
    if len(rewards) < LEAST_EPISODES:
        return {}
    return {"start/signal": float(any(max(r.correctness, r.total) > 0 for r in rewards) or None in reasons)}


def _tool_tags(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Calls per episode, and failed calls per call, of agents that count them: under the names that TRL gives them."""
    if not rows:
        return {}
    calls, failed = sum(row["tool_calls"] for row in rows), sum(row["failed_calls"] for row in rows)
    return {"tools/call_frequency": calls / len(rows), "tools/failure_frequency": failed / calls if calls else 0.0}


def _program_tags(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Whether what programs ask is one conversation that grows: branches per episode and how many of them are trained,
    share of requests that went on with one."""
    means = _means(rows)
    return {f"program/{name}": means[name] for name in sorted(_OF_PROGRAMS) if rows}


def rollout_clocks(scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """Mean seconds per episode by stage (time_generate, time_tools, time_queue)."""
    return {"time_tools": 0.0} | _means([e.timings for e in _episodes(scored)])
