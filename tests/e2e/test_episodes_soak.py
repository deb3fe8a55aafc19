"""The short version of scripts/soak/episodes.py: 300 tool episodes, 30 % of them with a fault, nothing left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.soak.episodes import growth, p95
from scripts.soak.troubles import END, HANGS, SHARES, fate_of
from tests.tools.bubblewrap import needs_bubblewrap


@pytest.mark.slow
@needs_bubblewrap
def test_300_episodes_leave_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "scripts.soak.episodes", "--episodes", "300"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "307 passed, 0 failed"  # and seven checks of what is left


def test_three_episodes_in_ten_have_a_fault() -> None:
    assert sum(SHARES.values()) == 1000
    assert sum(share for fate, share in SHARES.items() if fate not in ("none", "program")) == 300
    assert SHARES.keys() == END.keys()
    drawn = [fate_of(n, 0) for n in range(10_000)]
    for fate, share in SHARES.items():
        assert abs(drawn.count(fate) / 10 - share) < 15, fate
    assert set(HANGS) < set(drawn)


def test_growth_is_fitted_over_the_second_half() -> None:
    memory = [(n, 5000.0 * min(n, 500)) for n in range(100, 500, 100)]
    memory += [(n, 1000.0 + 0.5 * n + (-1) ** (n // 100)) for n in range(500, 1000, 100)]
    assert abs(growth(memory) - 0.5) < 0.02
    assert p95(list(range(1, 101))) == 95.95
