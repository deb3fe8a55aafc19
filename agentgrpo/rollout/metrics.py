"""What a step's episodes add up to: tags for metrics.jsonl, and the clocks that go elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, pstdev

from agentgrpo.core.types import Episode, ScoredGroup
from agentgrpo.rollout.scoring import Drop, episode_failures


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
    scored: Sequence[ScoredGroup], reasons: Sequence[Drop | None], cost_of: Callable[[Mapping[str, float]], float]
) -> dict[str, float]:
    """Tags: reward/*, correctness, agent/*, program/*, cost/*, tool_turns/*, tools/*, tokens/*, groups/*, failures/*.

    Means are over the episodes that were scored; what could not be scored is counted, never averaged in as 0.
    cost_of: an episode's metrics -> what its calls cost.
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
    if episodes:
        tags["episodes/truncated"] = float(sum(e.is_truncated for e in episodes))
        tags |= {f"agent/{k}": v for k, v in _means([e.metrics for e in episodes]).items()}
        costs = [cost_of(e.metrics) for e in episodes]
        tags |= {"cost/episode": fmean(costs), "cost/step": sum(costs)}
        tags |= _spread("tool_turns", [e.metrics.get("tool_turns", 0.0) for e in episodes])
        tags |= _tool_tags([e.metrics for e in episodes if "tool_calls" in e.metrics])
        tags |= _program_tags([e.metrics for e in episodes if "continued_share" in e.metrics])
        sampled = [sum(b.num_sampled_tokens for b in e.branches) for e in episodes]
        tokens = sum(len(b.token_ids) for e in episodes for b in e.branches)
        tags |= _spread("response_len", [float(n) for n in sampled])
        tags["tokens/sampled"] = float(sum(sampled))
        tags["tokens/total"] = float(tokens)
        tags["tokens/trainable_ratio"] = sum(sampled) / max(tokens, 1)
    return tags


def _tool_tags(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Calls per episode, and failed calls per call, of agents that count them: under the names that TRL gives them."""
    if not rows:
        return {}
    calls, failed = sum(row["tool_calls"] for row in rows), sum(row["failed_calls"] for row in rows)
    return {"tools/call_frequency": calls / len(rows), "tools/failure_frequency": failed / calls if calls else 0.0}


def _program_tags(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Whether what programs ask is one conversation that grows: branches per episode, share of requests that went on
    with one."""
    means = _means(rows)
    return {f"program/{name}": means[name] for name in ("branches", "continued_share") if rows}


def rollout_clocks(scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """Mean seconds per episode by stage (time_generate, time_tools, time_queue)."""
    return {"time_tools": 0.0} | _means([e.timings for e in _episodes(scored)])
