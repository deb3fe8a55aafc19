"""Estimators of KL(policy || reference) from the log-probs of sampled tokens, used as a loss term.

With d = logprob - ref_logprob of a token sampled from the policy (Schulman, "Approximating KL Divergence", 2020); each
is [M] -> [M] and differentiable in `logprobs` alone. |d| is clamped at 20. At d = 0 all three are 0, and k2 and k3 then
have no gradient either:

    name  value            gradient by logprob  its value estimates the KL  its gradient, on-policy, is on average
    k1    d                1                    unbiased, high variance     zero: no regulariser at all
    k2    d^2 / 2          d                    biased, low variance        that of KL(policy || reference)
    k3    exp(-d) - 1 + d  1 - exp(-d)          unbiased, low variance      that of KL(reference || policy)

k3 is GRPO's (arXiv 2402.03300, equation 4). A new estimator is one function and one line of KL_ESTIMATORS.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from agentgrpo.grpo.losses import LOG_RATIO_CLAMP


def _log_ratio(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return (logprobs - ref_logprobs.detach()).clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP)


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return _log_ratio(logprobs, ref_logprobs)


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return _log_ratio(logprobs, ref_logprobs).square() / 2


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    d = _log_ratio(logprobs, ref_logprobs)
    return (-d).expm1() + d


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
