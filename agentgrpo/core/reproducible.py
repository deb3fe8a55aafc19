"""The same bits from the same numbers, wherever in memory they lie: what matrix products must be told for it."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "MKL_CBWR"
"""Intel MKL's conditional numerical reproducibility. Read by it at its first call, so it is set before that."""


def ask_for_exact_products() -> None:
    """Have MKL choose its kernels by the CPU alone. Left to itself it also looks at how memory is aligned, so that a
    run would not repeat itself in the last bits of log-probs. What the user has set stays; other CPUs than Intel's do
    not need it, or MKL has no such mode for them."""
    if VARIABLE not in os.environ and (mode := _strict_mode()):
        os.environ[VARIABLE] = mode


def _strict_mode(info: Path = Path("/proc/cpuinfo")) -> str:
    """ "" where there is none."""
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
