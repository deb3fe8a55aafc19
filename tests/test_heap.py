"""Freed memory goes back to the system, though what is still in use lies between it."""

from __future__ import annotations

import platform

import psutil
import pytest

from agentgrpo.core import heap


def resident_mib() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_between_what_is_in_use_goes_back() -> None:
    blocks = [bytes(3_000) for _ in range(50_000)]
    kept = blocks[::50]
    del blocks
    before = resident_mib()
    heap.give_back()
    assert before - resident_mib() > 80
    assert len(kept) == 1_000
