"""Estimators of KL(policy || reference) from the log-probs of sampled tokens, used as a loss term or in the reward.

With d = logprob - ref_logprob of a token sampled from the policy (Schulman, "Approximating KL Divergence", 2020); each
is [M] -> [M] and differentiable in `logprobs` alone. |d| is clamped at 20. At d = 0 all are 0, and all but k1 then have
no gradient either:

    name     value            gradient by logprob  its value estimates the KL  its gradient, on-policy, is on average
    k1       d                1                    unbiased, high variance     zero: no regulariser at all
    k2, mse  d^2 / 2          d                    biased, low variance        that of KL(policy || reference)
    k3       exp(-d) - 1 + d  1 - exp(-d)          unbiased, low variance      that of KL(reference || policy)
    abs      |d|              sign(d)              biased upwards              that of no divergence

k3 is GRPO's (arXiv 2402.03300, equation 4), also known as low_var_kl. Times the policy's ratio to the policy that
sampled (`Algorithm.kl_importance`; DeepSeek-V3.2, arXiv 2512.02556) k1 and k3 have the gradient of KL(policy ||
reference), on-policy and off. A new estimator is one function and one line of KL_ESTIMATORS.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from agentgrpo.grpo.losses import log_ratio


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return log_ratio(logprobs, ref_logprobs)


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return log_ratio(logprobs, ref_logprobs).square() / 2


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    d = log_ratio(logprobs, ref_logprobs)
    return (-d).expm1() + d


def absolute(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return log_ratio(logprobs, ref_logprobs).abs()


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "abs": absolute,
    "mse": k2,
}
