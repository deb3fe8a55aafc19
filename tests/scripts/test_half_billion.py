"""What a plan says a run takes of memory, against a run in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import half_billion
import pytest


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_planned_peak_is_near_the_measured_one(tmp_path: Path) -> None:
    """29 million weights, all of them trained in float32."""
    found = half_billion.measure("small", 1, tmp_path, whole=True)
    weights = 4 * found.parameters
    assert found.steps == 1
    assert found.planned_bytes > 4 * weights  # weights, gradients, two moments
    assert 0.6 < found.planned_bytes / (found.peak_bytes - found.imports_bytes) < 1.5


def test_the_large_shape_is_that_of_the_published_model() -> None:
    assert half_billion.shape("0.5b")["hidden_size"] == 896
