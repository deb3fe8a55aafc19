"""The short version of scripts/soak/kill_loop.py: 20 SIGKILLs, nothing lost, nothing twice, not a byte different."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "soak" / "kill_loop.py"


@pytest.mark.timeout(900)
def test_twenty_kills_change_nothing(start: Path) -> None:
    arguments = ["--kills", "20", "--start", str(start)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    last = done.stdout.splitlines()[-1]
    assert last.endswith(" passed, 0 failed")
    assert int(last.split()[0]) >= 2
