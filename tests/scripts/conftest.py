"""The benches are scripts, not a package: they find one another in their own folder, and so do their tests."""

from __future__ import annotations

import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
sys.path += [str(BENCH), str(BENCH.parent)]
