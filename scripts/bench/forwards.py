"""Time the model's own forward, the lower bound of a rollout, and measure the hardware's limits.

Unmodified transformers: DynamicCache, the model's default attention (sdpa), inference mode, logits of last positions
only. Cached keys are random numbers, because their values do not affect the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
from measure import Now
from schedules import EngineStep, Spans
from transformers import DynamicCache

DECODE_CALLS = 16
PREFILL_CALLS = 4
GEMM = {"cpu": 1024, "cuda": 8192}
"""Rows of the square matrices that are multiplied."""
READ_BYTES = 1 << 28
"""Size of the matrix in bytes, larger than any cache."""


class Rates(NamedTuple):
    """Measured peak rates of the hardware."""

    flops_per_s: float
    """FLOP/s of a large matrix product."""
    bytes_per_s: float
    """Bytes per second read by a matrix-vector product."""


def clock_of(device: torch.device) -> Now:
    """Return a clock: CPU seconds of this process; on an accelerator, wall time after all queued work is done."""
    if device.type == "cpu":
        return time.process_time

    def now() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


def _cache(model: Any, rows: int, tokens: int) -> DynamicCache:
    """A cache with `tokens` keys and values of `rows` sequences."""
    config = model.config
    cache = DynamicCache(config=config)
    if tokens:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (rows, config.num_key_value_heads, tokens, head_dim)
        for layer in range(config.num_hidden_layers):
            keys, values = torch.randn(2, *shape, dtype=model.dtype, device=model.device)
            cache.update(keys, values, layer)
    return cache


def _ids(model: Any, rows: int, tokens: int) -> torch.Tensor:
    return torch.randint(0, model.config.vocab_size, (rows, tokens), device=model.device)


@torch.inference_mode()
def decode_seconds(model: Any, rows: int, keys: int, now: Now) -> float:
    """Seconds of one forward of one token for each of `rows` sequences that attend to `keys` keys: the mean of
    DECODE_CALLS calls, during which the number of keys grows past `keys`."""
    cache = _cache(model, rows, max(0, keys - 1 - DECODE_CALLS // 2))
    ids = _ids(model, rows, 1)
    began = now()
    for _ in range(DECODE_CALLS):
        model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return (now() - began) / DECODE_CALLS


@torch.inference_mode()
def prefill_rate(model: Any, spans: Spans, now: Now) -> float:
    """Tokens per second of a forward of `spans`: the mean of PREFILL_CALLS calls."""
    ids, seconds = _ids(model, spans.rows, spans.tokens), 0.0
    for _ in range(PREFILL_CALLS):
        cache = _cache(model, spans.rows, spans.start)
        began = now()
        model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        seconds += now() - began
    return PREFILL_CALLS * spans.rows * spans.tokens / seconds


@torch.inference_mode()
def measured_rates(device: torch.device, dtype: torch.dtype, now: Now) -> Rates:
    """Peak rates of one core, or of one accelerator, in this dtype."""
    n = GEMM[device.type]
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    width = 4096
    matrix = torch.ones(READ_BYTES // a.element_size() // width, width, dtype=dtype, device=device)
    vector = torch.ones(width, dtype=dtype, device=device)
    return Rates(
        flops_per_s=2 * n**3 / _seconds(lambda: a @ b, now),
        bytes_per_s=matrix.numel() * matrix.element_size() / _seconds(lambda: matrix @ vector, now),
    )


def _seconds(work: Callable[[], object], now: Now) -> float:
    """Median of five calls, after one warm-up."""
    times = []
    for _ in range(6):
        began = now()
        work()
        times.append(now() - began)
    return median(times[1:])


def bound_seconds(model: Any, steps: list[EngineStep], rates: Rates) -> float:
    """The least time that the hardware could need for these engine steps: each is bound by its arithmetic, or by
    reading weights, cached keys and values once, whichever takes longer."""
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    head = model.get_output_embeddings()
    layers = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not head)
    size = head.weight.element_size()
    total = 0.0
    for step in steps:
        flops = 2 * layers * step.tokens + 2 * head.weight.numel() * step.drawn
        flops += 4 * config.num_hidden_layers * config.num_attention_heads * head_dim * step.attended
        read = layers + head.weight.numel() * bool(step.drawn)
        read += 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * step.keys_read
        total += max(flops / rates.flops_per_s, read * size / rates.bytes_per_s)
    return total
