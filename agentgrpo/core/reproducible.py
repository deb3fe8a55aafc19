"""Settings that make matrix products give equal bits for equal numbers, wherever these lie in memory."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "MKL_CBWR"
"""Intel MKL's conditional numerical reproducibility. MKL reads it at its first call, so it is set before that."""


def ask_for_exact_products() -> None:
    """Let MKL choose its kernels by the CPU alone. By default it also considers how memory is aligned, so that equal
    runs would differ in the last bits of log-probs. A value that the user has set is kept. Other CPUs than Intel's do
    not need it, or MKL has no such mode for them."""
    if VARIABLE not in os.environ and (mode := _strict_mode()):
        os.environ[VARIABLE] = mode


def _strict_mode(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return MKL's strict mode for this CPU; "" if MKL has no mode for it."""
    try:
        text = info.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    if "GenuineIntel" not in text:
        return ""
    if {"avx512f", "avx512bw", "avx512vl"} <= {*flags}:
        return "AVX512,STRICT"
    return "AVX2,STRICT" if "avx2" in flags else ""
