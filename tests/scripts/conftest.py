"""The benches are scripts, not a package: they find one another in their own folder, and so do their tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
sys.path += [str(BENCH), str(BENCH.parent)]


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Benches compute with one thread; give the next test what it found."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
