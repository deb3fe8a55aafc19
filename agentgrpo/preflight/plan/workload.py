"""The computation of a step and a device's approximate time for it, from the model's shape and the device's speed.

    rollout   injected tokens: matrix products, at the device's compute rate
              sampled tokens: the weights are read once per token, for all active episodes together
    update    forward and backward products in the trainer's precision
    reference a forward pass in the trainer's precision

The settings bound the number of tokens; the seconds are an estimate for that bound. Time waiting for tools, judges and
searches is not included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

import torch

from agentgrpo.config.hardware import Hardware
from agentgrpo.preflight.plan.device import MemoryPlan, WeightsMemory
from agentgrpo.training.policy import DTYPES
from agentgrpo.training.precision import AUTOCAST

REACHED = 0.4
"""Share of the peak stated by the maker that training large models usually reaches."""
IN_FLOAT32 = 1 / 16
"""Share of the bfloat16 peak in float32: A100 and H100 without TF32, which torch does not use by default."""
PROBE_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """turns: sampled turns of an episode, their mean if the data was counted; turns_basis gives the source. contexts:
    number of contexts that these turns use. rounds: maximum number of rollout rounds, of which one round's worth is
    trained on (rollout.refill_rounds)."""

    episodes: int
    """Episodes of one round."""
    turns: float
    turns_basis: str
    contexts: float
    max_tokens: int
    max_context: int
    rounds: int = 1

    @property
    def context_tokens(self) -> int:
        """Maximum context tokens of one round; a prompt shared by a group counts once per episode."""
        return ceil(self.episodes * self.contexts * self.max_context)

    @property
    def sampled_tokens(self) -> int:
        """Maximum sampled tokens of one round."""
        return min(ceil(self.episodes * self.turns * min(self.max_tokens, self.max_context)), self.context_tokens)

    def flops(self, weights: WeightsMemory, *, recomputed: bool, reference: bool) -> Mapping[str, float]:
        """Maximum FLOP of the products with the weights. Per weight and token: 2 forward, 2 for the input's gradient, 2
        for the weight's gradient if it is trained, and 2 if layers are recomputed. The output layer processes sampled
        tokens only."""
        body, head = 2.0 * weights.body * self.context_tokens, 2.0 * weights.head * self.sampled_tokens
        own = weights.trained / weights.total
        return {
            "rollout": self.rounds * (body + head),
            "update": body * (2 + own + recomputed) + head * (2 + own),
            "reference": (body + head) if reference else 0.0,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Operations of one device per second."""

    flops: float
    """FLOP/s in the dtype of the weights, used for sampling."""
    trainer_flops: float
    """FLOP/s in the dtype of the trainer's products."""
    bandwidth: float
    """Bytes read per second."""
    basis: str


def rate_of(hardware: Hardware, *, hidden: int, intermediate: int) -> Rate | None:
    """The rate that the settings give, else one from a short measurement with products of these sizes; None if neither
    is possible."""
    mixed = AUTOCAST[hardware.mixed_precision]
    own, trainer = DTYPES[hardware.dtype], mixed or DTYPES[hardware.dtype]
    if hardware.peak_tflops is not None and hardware.bandwidth_gib_s is not None:
        shares = {d: REACHED * (IN_FLOAT32 if d is torch.float32 else 1) for d in (own, trainer)}
        said = " and ".join(f"{100 * share:.3g}% in {_name(d)}" for d, share in shares.items())
        basis = f"hardware.peak_tflops={hardware.peak_tflops:g}, of which {said} are counted on, and "
        basis += f"hardware.bandwidth_gib_s={hardware.bandwidth_gib_s:g}"
        peak = hardware.peak_tflops * 1e12
        return Rate(
            flops=shares[own] * peak,
            trainer_flops=shares[trainer] * peak,
            bandwidth=hardware.bandwidth_gib_s * 2**30,
            basis=basis,
        )
    if hardware.device != "cpu" and not torch.cuda.is_available():
        return None
    threads = torch.get_num_threads()
    torch.set_num_threads(hardware.num_threads)
    try:
        flops, bandwidth = _probed(own, hardware.device, hidden, intermediate)
        trained = flops if trainer is own else _probed(trainer, hardware.device, hidden, intermediate)[0]
    finally:
        torch.set_num_threads(threads)
    mixing = "" if trainer is own else f", the trainer's {trained / 1e12:.3g} in {_name(trainer)}"
    basis = f"what was measured here just now: {flops / 1e12:.3g} TFLOP/s{mixing}, {bandwidth / 2**30:.3g} GiB/s"
    return Rate(flops=flops, trainer_flops=trained, bandwidth=bandwidth, basis=basis)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _probed(dtype: torch.dtype, device: str, hidden: int, intermediate: int) -> tuple[float, float]:
    """(FLOP/s of a product over 512 tokens, bytes/s of a product over one token, with weights larger than a cache)."""
    copies = max(1, 2**26 // (hidden * intermediate * dtype.itemsize))
    weights = torch.rand(copies, intermediate, hidden, dtype=dtype, device=device)
    tokens, one = (torch.rand(n, hidden, dtype=dtype, device=device) for n in (512, 1))
    product = _seconds(lambda i: tokens @ weights[i % copies].T, weights)
    read = _seconds(lambda i: one @ weights[i % copies].T, weights)
    return 2.0 * 512 * hidden * intermediate / product, weights[0].nbytes / read


def _seconds(work: Callable[[int], torch.Tensor], on: torch.Tensor) -> float:
    """Mean seconds of one call, over the calls that fit into PROBE_S after three warm-up calls."""
    for i in range(3):
        work(i)
    _wait(on)
    calls, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < PROBE_S:
        work(calls)
        calls += 1
    _wait(on)
    return (time.perf_counter() - begun) / calls


def _wait(on: torch.Tensor) -> None:
    if on.device.type == "cuda":
        torch.cuda.synchronize(on.device)


def seconds(
    step: StepWork, plan: MemoryPlan, rate: Rate, *, recomputed: bool, reference: bool, servers: int
) -> Mapping[str, float]:
    """Estimated seconds of each part of a step, for the maximum number of tokens. servers: number of sampling devices,
    if they differ from the trainer's."""
    flops = step.flops(plan.weights, recomputed=recomputed, reference=reference)
    devices = servers or plan.processes
    at_once = ceil(min(step.episodes, plan.processes * plan.episodes_at_once) / devices)  # per sampling device
    waves = ceil(step.episodes / devices / at_once)
    tokens = step.rounds * waves * step.sampled_tokens / step.episodes
    read = plan.read_bytes + at_once * step.max_context / 2 * plan.kv_token_bytes
    sampled = 2.0 * (plan.weights.body + plan.weights.head) * at_once
    injected = flops["rollout"] * (1 - step.sampled_tokens / step.context_tokens) / devices
    return {
        "rollout": injected / rate.flops + tokens * max(read / rate.bandwidth, sampled / rate.flops),
        "update": flops["update"] / plan.processes / rate.trainer_flops,
        "reference": flops["reference"] / plan.processes / rate.trainer_flops,
    }
