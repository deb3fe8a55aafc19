"""A second implementation of the objective on plain Python floats; `agentgrpo check numerics` compares the trainer with
it.

It goes token by token, follows the papers that losses.py names and shares nothing with losses.py except the algorithm's
keys: no tensors, no vectors, no clamps (the answers below stay far from the clamping range). Gradients are central
differences. Quantities that a paper treats as constants are taken from `fixed`, the answer at the point of
differentiation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import NamedTuple

from agentgrpo.grpo.algorithm import Algorithm

Floats = tuple[float, ...]
STEP = 1e-5
"""Step of the central differences; truncation and rounding errors are each about 1e-10."""


class GoldenSample(NamedTuple):
    """The trained tokens of one sample, [n] each."""

    group: str
    advantages: Floats
    policy: Floats
    """Log-probs under the policy; the other log-probs are constants."""
    old: Floats
    """Log-probs under the trainer before the update."""
    rollout: Floats
    """Log-probs under the sampler."""
    reference: Floats
    kept: tuple[bool, ...] = ()
    """Whether each token has a policy loss; () = all do."""


ANSWERS = (
    # Token ratios far beyond either clip; a sample ratio within it; the sampler close to the trainer.
    GoldenSample("a", (1.5,) * 3, (-1.2, -0.4, -2.0), (-2.9, -0.5, -0.3), (-2.8, -0.55, -0.35), (-1.0, -0.9, -2.2)),
    # A negative advantage, a ratio beyond the dual clip; weights of tokens and sample beyond the cap.
    GoldenSample("a", (-0.75,) * 2, (-0.7, -1.5), (-2.2, -1.1), (-3.6, -1.6), (-0.2, -2.1)),
    GoldenSample("a", (-0.5,), (-0.65,), (-0.5,), (-0.9,), (-1.4,)),
    # One advantage per token; the sample's weight is within the cap although a token's weight is not.
    GoldenSample("b", (2.0, 2.0, -1.0, 0.0), (-0.3, -2.5, -1.7, -0.2), (-0.35, -2.4, -1.9, -0.4), (-0.1, -2.6, -3.1,
    -0.1),
           (-0.5, -2.0, -1.1, -0.3)),
    GoldenSample("b", (-2.0,) * 3, (-3.0, -0.8, -1.1), (-1.8, -1.0, -1.3), (-1.7, -0.7, -1.2), (-2.4, -1.3, -0.7)),
    # A group with equal rewards: no policy gradient, but it counts in every denominator and in the KL term.
    GoldenSample("c", (0.0,) * 2, (-0.9, -0.4), (-1.2, -0.3), (-1.0, -0.5), (-0.6, -1.1)),
    GoldenSample("c", (0.0,) * 3, (-1.3, -0.6, -0.2), (-1.1, -0.8, -0.25), (-1.4, -0.5, -0.2), (-1.9, -0.7, -0.1)),
)  # fmt: skip

REWARDS = ((1.0, 0.0, 0.25, 0.5), (0.75, 0.75, 0.75), (0.1, 0.9))
"""Rewards of three groups; the second group carries no signal."""
TERMS = (
    ({"right": 1.0, "cost": 0.0}, {"right": 0.5, "cost": -0.5}, {"right": 0.5, "cost": -0.25}, {"right": 0.5}),
    ({"right": 0.75}, {"right": 0.75}, {"right": 0.75}),
    ({"right": 0.2, "cost": -0.1}, {"right": 1.0, "cost": -0.1}),
)
"""The terms of each reward."""

PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "clipped": {"clip_low": 0.2, "clip_high": 0.2},
    "sequence_clipped": {"clip_low": 0.0003, "clip_high": 0.0004},
    "cispo": {"clip_low": 1.0, "clip_high": 4.0},
    "sapo": {"temperature_positive": 1.0, "temperature_negative": 1.05},
    "vespo": {
        "k_positive": 2.0,
        "lambda_positive": 3.0,
        "k_negative": 3.0,
        "lambda_negative": 2.0,
    },
    "reinforce": {},
}


def value(answers: Sequence[GoldenSample], algorithm: Algorithm, *, corrected: bool) -> float:
    """Return the value of the objective. corrected: the sampler is not the trainer, so the algorithm's correction
    applies."""
    return math.fsum(_share(answers, i, a, algorithm, corrected) for i, a in enumerate(answers))


def gradient(answers: Sequence[GoldenSample], algorithm: Algorithm, *, corrected: bool) -> list[list[float]]:
    """Return d value / d policy log-prob: one number per token for each answer. A log-prob affects only the share of
    its own answer."""

    def at(i: int, t: int, by: float) -> float:
        a = answers[i]
        moved = a._replace(policy=(*a.policy[:t], a.policy[t] + by, *a.policy[t + 1 :]))
        return _share(answers, i, moved, algorithm, corrected)

    return [
        [(at(i, t, STEP) - at(i, t, -STEP)) / (2 * STEP) for t in range(len(answer.policy))]
        for i, answer in enumerate(answers)
    ]


def _share(
    answers: Sequence[GoldenSample], i: int, answer: GoldenSample, algorithm: Algorithm, corrected: bool
) -> float:
    """Return the contribution of answer i to the objective; `answer` is answer i with other log-probs."""
    name = str(algorithm.loss)
    fixed, loss = answers[i], LOSSES[name]
    weights = _correction(fixed, algorithm) if corrected and algorithm.correction != "none" else None
    parameters = {k: v for k, v in {**PUBLISHED[name], **algorithm.loss_args}.items() if v is not None}
    total = 0.0
    for t in range(len(answer.policy)):
        if fixed.kept and not fixed.kept[t]:
            own = 0.0
        elif name == "vespo":
            own = loss(answer, fixed, t, {**parameters, "correction": math.prod(_factors(weights, algorithm))})
        else:
            own = loss(answer, fixed, t, parameters) * (1.0 if weights is None else weights[t])
        total += own
        if algorithm.has_kl_loss:
            total += algorithm.kl_coef * _kl(answer, t, algorithm)
    return total / denominator(answers, i, algorithm)


Parameters = Mapping[str, float]


def _ratio(answer: GoldenSample, t: int) -> float:
    return math.exp(answer.policy[t] - answer.old[t])


def _clip(ratio: float, p: Parameters) -> float:
    return max(1 - p["clip_low"], min(1 + p["clip_high"], ratio))


def _ppo(ratio: float, advantage: float, p: Parameters) -> float:
    surrogate = min(ratio * advantage, _clip(ratio, p) * advantage)
    if "clip_dual" in p and advantage < 0:
        surrogate = max(surrogate, p["clip_dual"] * advantage)
    return -surrogate


def _clipped(answer: GoldenSample, fixed: GoldenSample, t: int, p: Parameters) -> float:
    return _ppo(_ratio(answer, t), answer.advantages[t], p)


def _sequence_clipped(answer: GoldenSample, fixed: GoldenSample, t: int, p: Parameters) -> float:
    """GSPO-token, arXiv 2507.18071, equation 14: the sample ratio is constant; the gradient flows through the token
    itself."""
    mean = fmean(new - old for new, old in zip(fixed.policy, fixed.old, strict=True))
    return _ppo(math.exp(mean + answer.policy[t] - fixed.policy[t]), answer.advantages[t], p)


def _cispo(answer: GoldenSample, fixed: GoldenSample, t: int, p: Parameters) -> float:
    return -_clip(_ratio(fixed, t), p) * answer.advantages[t] * answer.policy[t]


def _sapo(answer: GoldenSample, fixed: GoldenSample, t: int, p: Parameters) -> float:
    advantage = answer.advantages[t]
    tau = p["temperature_positive" if advantage > 0 else "temperature_negative"]
    return -advantage * 4 / tau / (1 + math.exp(-tau * (_ratio(answer, t) - 1)))


def _vespo(answer: GoldenSample, fixed: GoldenSample, t: int, p: Parameters) -> float:
    advantage = answer.advantages[t]
    sign = "negative" if advantage < 0 else "positive"
    w = p["correction"] * math.prod(_ratio(fixed, s) for s in range(len(fixed.policy)))
    kernel = math.pow(w, p[f"k_{sign}"]) * math.exp(p[f"lambda_{sign}"] * (1 - w))
    return -kernel * advantage * answer.policy[t]


def _reinforce(answer: GoldenSample, fixed: GoldenSample, t: int, p: Parameters) -> float:
    return -answer.advantages[t] * answer.policy[t]


LOSSES: Mapping[str, Callable[[GoldenSample, GoldenSample, int, Parameters], float]] = {
    "clipped": _clipped,
    "sequence_clipped": _sequence_clipped,
    "cispo": _cispo,
    "sapo": _sapo,
    "vespo": _vespo,
    "reinforce": _reinforce,
}


def _kl(answer: GoldenSample, t: int, algorithm: Algorithm) -> float:
    d = answer.policy[t] - answer.reference[t]
    squared, k3 = d * d / 2, math.exp(-d) - 1 + d
    estimate = {"k1": d, "k2": squared, "k3": k3, "abs": abs(d), "mse": squared}[algorithm.kl]
    return estimate * _ratio(answer, t) if algorithm.kl_importance else estimate


def _correction(answer: GoldenSample, algorithm: Algorithm) -> list[float]:
    """The weight of each token."""
    weights = [math.exp(old - rollout) for old, rollout in zip(answer.old, answer.rollout, strict=True)]
    level, way = algorithm.correction.split("_")
    if level == "sequence":
        weights = [math.prod(weights)] * len(weights)
    cap = algorithm.correction_cap
    return [min(w, cap) if way == "truncate" else w if w <= cap else 0.0 for w in weights]


def _factors(weights: list[float] | None, algorithm: Algorithm) -> list[float]:
    """Return the factors of a sample's ratio: the weights of its tokens, or its own weight."""
    if weights is None:
        return []
    return weights[:1] if algorithm.correction.startswith("sequence") else weights


def denominator(answers: Sequence[GoldenSample], i: int, algorithm: Algorithm) -> float:
    """Return the denominator for the losses of answer i's tokens."""
    tokens = [len(a.policy) for a in answers]
    groups = [a.group for a in answers]
    of_group = sum(n for n, group in zip(tokens, groups, strict=True) if group == groups[i])
    return {
        "token_mean": sum(tokens),
        "sequence_mean": len(tokens) * tokens[i],
        "prompt_mean": len(set(groups)) * of_group,
        "constant": len(tokens) * (algorithm.max_sampled_tokens or 0),
        "sequence_sum": len(tokens),
    }[algorithm.aggregation]


def advantages(name: str, eps: float) -> list[list[float]]:
    """Return the advantages of REWARDS and TERMS, without those that are None."""
    everything = [r for group in REWARDS for r in group]
    if name == "accepted":
        return [[1.0] * group.count(max(group)) if len(set(group)) > 1 else [] for group in REWARDS]
    if name == "per_term":
        added = [[0.0] * len(group) for group in TERMS]
        for column in ("right", "cost"):
            for g, group in enumerate(TERMS):
                values = [terms.get(column, 0.0) for terms in group]
                added[g] = [
                    a + (v - fmean(values)) / (pstdev(values) + eps) for a, v in zip(added[g], values, strict=True)
                ]
        spread = pstdev(a for group in added for a in group)
        return [[a / (spread + eps) for a in group] for group in added]
    formula: Callable[[float, Sequence[float]], float] = {
        "group_zscore": lambda r, g: (r - fmean(g)) / (pstdev(g) + eps),
        "group_mean": lambda r, g: r - fmean(g),
        "batch_zscore": lambda r, g: (r - fmean(g)) / (pstdev(everything) + eps),
        "leave_one_out": lambda r, g: r - (math.fsum(g) - r) / (len(g) - 1),
        "max_rl": lambda r, g: (r - fmean(g)) / (fmean(g) + eps),
        "none": lambda r, g: r,
    }[name]
    return [[formula(r, group) for r in group] for group in REWARDS]
