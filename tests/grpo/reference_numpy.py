"""The published objectives, written out a second time: float64, one answer and one token after the other.

Nothing of agentgrpo is used or looked at here. Every function follows the equation its docstring names. An objective is
minimised, so it is the negative of the papers' J.

Where a paper stops a gradient, sg[.], the value is taken from `fixed`, the same answers at the point of evaluation: the
objective is an ordinary function of `answers`, whose derivative central differences give.

    r_it = pi(o_it) / pi_old(o_it)     s_i = (product of r_it over t)^(1 / |o_i|)     W_i = product of r_it over t
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

Array = np.ndarray


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The trained tokens of one sample; every array [n]."""

    group: str
    logprobs: Array
    """log pi of the policy: what an objective is a function of."""
    old: Array
    """log pi_old: the trainer's before the update."""
    rollout: Array
    """log mu: the sampler's."""
    reference: Array
    """log pi_ref."""
    advantages: Array

    def __len__(self) -> int:
        return len(self.logprobs)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What to compute. None = none of it."""

    loss: str
    aggregation: str
    clip_low: float | None = None
    clip_high: float | None = None
    clip_dual: float | None = None
    tau_positive: float = 1.0
    tau_negative: float = 1.05
    gamma_positive: tuple[float, float] = (2.0, 3.0)
    gamma_negative: tuple[float, float] = (3.0, 2.0)
    kl: str | None = None
    kl_coef: float = 0.0
    kl_importance: bool = False
    correction: str | None = None
    cap: float = 3.0
    max_tokens: int | None = None


def _clip(x: float, low: float | None, high: float | None) -> float:
    if low is not None and x < 1 - low:
        return 1 - low
    if high is not None and x > 1 + high:
        return 1 + high
    return x


def _ratio(answer: Answer, t: int) -> float:
    return float(np.exp(answer.logprobs[t] - answer.old[t]))


def _sequence_ratio(answer: Answer) -> float:
    """s_i of GSPO, arXiv 2507.18071, equation 7: the geometric mean of the token ratios."""
    total = 0.0
    for t in range(len(answer)):
        total += answer.logprobs[t] - answer.old[t]
    return float(np.exp(total / len(answer)))


def _ppo(ratio: float, advantage: float, o: Objective) -> float:
    """-min(r A, clip(r) A), and for A < 0 never above -c A: PPO arXiv 1707.06347 equation 7, DAPO's two bounds arXiv
    2503.14476 equation 8, dual clip arXiv 1912.09729."""
    surrogate = min(ratio * advantage, _clip(ratio, o.clip_low, o.clip_high) * advantage)
    if o.clip_dual is not None and advantage < 0:
        surrogate = max(surrogate, o.clip_dual * advantage)
    return -surrogate


def clipped(answer: Answer, fixed: Answer, o: Objective) -> list[float]:
    """GRPO, arXiv 2402.03300, equation 3, the policy term."""
    return [_ppo(_ratio(answer, t), answer.advantages[t], o) for t in range(len(answer))]


def sequence_clipped(answer: Answer, fixed: Answer, o: Objective) -> list[float]:
    """GSPO, arXiv 2507.18071, equation 5: one number for the whole answer, which each of its tokens stands for.

    Where tokens differ (in advantage, or in the weight a token-level correction gives), the sequence form has no
    meaning; then GSPO-token, equations 13 and 14: s_it = sg[s_i] * pi(o_it) / sg[pi(o_it)].
    """
    if len(set(answer.advantages)) == 1 and not (o.correction or "").startswith("token"):
        return [_ppo(_sequence_ratio(answer), answer.advantages[0], o)] * len(answer)
    s = _sequence_ratio(fixed)
    return [
        _ppo(s * float(np.exp(answer.logprobs[t] - fixed.logprobs[t])), answer.advantages[t], o)
        for t in range(len(answer))
    ]


def cispo(answer: Answer, fixed: Answer, o: Objective) -> list[float]:
    """MiniMax-M1, arXiv 2506.13585, equations 4 and 5: -sg[clip(r)] A log pi; clip_low None = no lower bound."""
    return [
        -_clip(_ratio(fixed, t), o.clip_low, o.clip_high) * answer.advantages[t] * answer.logprobs[t]
        for t in range(len(answer))
    ]


def sapo(answer: Answer, fixed: Answer, o: Objective) -> list[float]:
    """arXiv 2511.20347, equations 5 and 6: -sigmoid(tau (r - 1)) 4 / tau A; tau by the advantage's sign."""
    losses = []
    for t in range(len(answer)):
        tau = o.tau_positive if answer.advantages[t] > 0 else o.tau_negative
        gate = 1 / (1 + np.exp(-tau * (_ratio(answer, t) - 1))) * 4 / tau
        losses.append(-float(gate) * answer.advantages[t])
    return losses


def vespo(answer: Answer, fixed: Answer, o: Objective) -> list[float]:
    """arXiv 2602.10693: -sg[phi(W)] A log pi with phi(W) = W^c1 exp(c2 (1 - W)), (c1, c2) by the advantage's sign.

    W is the ratio to the behaviour policy: what a correction makes of pi_old / mu is a factor of W, and not a second
    weight of the loss.
    """
    weight = 1.0
    for t in range(len(fixed)):
        weight *= _ratio(fixed, t)
    if o.correction is not None:
        of_tokens = correction_weights(fixed, o)
        if o.correction.startswith("sequence"):
            weight *= of_tokens[0]
        else:
            for w in of_tokens:
                weight *= w
    losses = []
    for t in range(len(answer)):
        c1, c2 = o.gamma_positive if answer.advantages[t] >= 0 else o.gamma_negative
        phi = weight**c1 * float(np.exp(c2 * (1 - weight)))
        losses.append(-phi * answer.advantages[t] * answer.logprobs[t])
    return losses


def reinforce(answer: Answer, fixed: Answer, o: Objective) -> list[float]:
    """Williams 1992: -A log pi."""
    return [-answer.advantages[t] * answer.logprobs[t] for t in range(len(answer))]


LOSSES: Mapping[str, Callable[[Answer, Answer, Objective], list[float]]] = {
    "clipped": clipped,
    "sequence_clipped": sequence_clipped,
    "cispo": cispo,
    "sapo": sapo,
    "vespo": vespo,
    "reinforce": reinforce,
}


def kl_estimates(answer: Answer, o: Objective) -> list[float]:
    """Schulman 2020, with d = log pi - log pi_ref: k1 = d, k2 = mse = d^2 / 2, k3 = exp(-d) - 1 + d, abs = |d|.

    kl_importance: each times r_it, DeepSeek-V3.2 (arXiv 2512.02556).
    """
    estimates = []
    for t in range(len(answer)):
        d = float(answer.logprobs[t] - answer.reference[t])
        kl = {
            "k1": d,
            "k2": d * d / 2,
            "k3": float(np.exp(-d)) - 1 + d,
            "abs": abs(d),
            "mse": d * d / 2,
        }[o.kl or ""]
        estimates.append(kl * _ratio(answer, t) if o.kl_importance else kl)
    return estimates


def correction_weights(answer: Answer, o: Objective) -> list[float]:
    """Importance weights pi_old / mu of the tokens, or of the whole answer. Truncated at the cap (Ionides 2008; for
    language models Yao et al. 2025) or dropped beyond it (Liu et al. 2025)."""
    ratios = [float(np.exp(answer.old[t] - answer.rollout[t])) for t in range(len(answer))]
    level, how = (o.correction or "").split("_")
    if level == "sequence":
        product = 1.0
        for ratio in ratios:
            product *= ratio
        ratios = [product] * len(answer)
    if how == "truncate":
        return [min(w, o.cap) for w in ratios]
    return [w if w <= o.cap else 0.0 for w in ratios]


def answer_losses(answer: Answer, fixed: Answer, o: Objective) -> list[float]:
    """The loss of each token: the policy's, corrected, plus the KL term."""
    losses = LOSSES[o.loss](answer, fixed, o)
    if o.correction is not None and o.loss != "vespo":
        weights = correction_weights(fixed, o)
        losses = [w * x for w, x in zip(weights, losses, strict=True)]
    if o.kl is not None:
        losses = [x + o.kl_coef * k for x, k in zip(losses, kl_estimates(answer, o), strict=True)]
    return losses


def share(answers: Sequence[Answer], i: int, losses: Sequence[float], o: Objective) -> float:
    """What answer i adds to the objective.

    token_mean: DAPO, arXiv 2503.14476, equation 8. sequence_mean: GRPO, arXiv 2402.03300, equation 3. constant:
    Dr. GRPO, arXiv 2503.20783, section 3.2. sequence_sum: LUSPO, arXiv 2602.05261. prompt_mean: the token mean of each
    group, groups equal.
    """
    total = 0.0
    for x in losses:
        total += x
    if o.aggregation == "token_mean":
        return total / sum(len(a) for a in answers)
    if o.aggregation == "sequence_mean":
        return total / len(answers[i]) / len(answers)
    if o.aggregation == "prompt_mean":
        of_group = sum(len(a) for a in answers if a.group == answers[i].group)
        return total / of_group / len({a.group for a in answers})
    if o.aggregation == "constant":
        assert o.max_tokens is not None
        return total / (len(answers) * o.max_tokens)
    assert o.aggregation == "sequence_sum", o.aggregation
    return total / len(answers)


def value(answers: Sequence[Answer], o: Objective) -> float:
    total = 0.0
    for i, answer in enumerate(answers):
        total += share(answers, i, answer_losses(answer, answer, o), o)
    return total


def gradient(answers: Sequence[Answer], o: Objective, h: float = 1e-5) -> list[Array]:
    """d value / d logprobs of each answer, by central differences. An answer's share depends on its own log-probs and
    on how many tokens there are, so only that share is evaluated again."""
    gradients = []
    for i, answer in enumerate(answers):
        of_answer = np.zeros(len(answer))
        for t in range(len(answer)):
            sides = []
            for sign in (1, -1):
                moved = answer.logprobs.copy()
                moved[t] += sign * h
                moved_answer = replace(answer, logprobs=moved)
                sides.append(share(answers, i, answer_losses(moved_answer, answer, o), o))
            of_answer[t] = (sides[0] - sides[1]) / (2 * h)
        gradients.append(of_answer)
    return gradients


# --- advantages: rewards of groups -> credits of the same shape


def _mean(values: Sequence[float]) -> float:
    total = 0.0
    for v in values:
        total += v
    return total / len(values)


def _std(values: Sequence[float]) -> float:
    """Population standard deviation."""
    mean = _mean(values)
    return float(np.sqrt(_mean([(v - mean) ** 2 for v in values])))


Groups = Sequence[Sequence[float]]


def group_zscore(groups: Groups, eps: float) -> list[list[float]]:
    """GRPO, arXiv 2402.03300, section 4.1.2."""
    return [[(r - _mean(g)) / (_std(g) + eps) for r in g] for g in groups]


def group_mean(groups: Groups, eps: float) -> list[list[float]]:
    """Dr. GRPO, arXiv 2503.20783, section 3.2."""
    return [[r - _mean(g) for r in g] for g in groups]


def batch_zscore(groups: Groups, eps: float) -> list[list[float]]:
    """Group mean, standard deviation of all rewards of the batch: arXiv 2508.08221."""
    std = _std([r for g in groups for r in g])
    return [[(r - _mean(g)) / (std + eps) for r in g] for g in groups]


def leave_one_out(groups: Groups, eps: float) -> list[list[float]]:
    """RLOO, arXiv 2402.14740: the baseline of each is the mean of the others."""
    return [[r - _mean([x for j, x in enumerate(g) if j != i]) for i, r in enumerate(g)] for g in groups]


def max_rl(groups: Groups, eps: float) -> list[list[float]]:
    """MaxRL, arXiv 2602.02710: centred, over the mean."""
    return [[r / (_mean(g) + eps) - _mean(g) / (_mean(g) + eps) for r in g] for g in groups]


def per_term(groups: Sequence[Sequence[Mapping[str, float]]], eps: float) -> list[list[float]]:
    """GDPO, arXiv 2601.05242, equations 4 to 6: each reward's z-score in its group, summed, normalised in the batch."""
    names = list(groups[0][0])
    summed: list[list[float]] = [[0.0] * len(g) for g in groups]
    for name in names:
        for g, group in enumerate(groups):
            values = [terms[name] for terms in group]
            for i, r in enumerate(values):
                spread = _std(values)
                summed[g][i] += (r - _mean(values)) / (spread + eps) if spread else 0.0
    everything = [a for g in summed for a in g]
    mean, std = _mean(everything), _std(everything)
    return [[(a - mean) / (std + eps) for a in g] for g in summed]
