"""The examples, run as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "scripts" / "examples"


def test_the_loop_learns_in_sixty_lines(tmp_path: Path) -> None:
    loop = EXAMPLES / "rl_loop.py"
    assert len(loop.read_text(encoding="utf-8").splitlines()) <= 60
    done = subprocess.run([sys.executable, str(loop)], capture_output=True, text=True, check=True, cwd=tmp_path)
    rewards = [float(reward) for reward in re.findall(r"reward (\S+)", done.stdout)]
    assert len(rewards) == 20
    assert sum(rewards[-3:]) / 3 > 10 * rewards[0]
    assert rewards[-1] > 0.8
    assert list(tmp_path.iterdir()) == []
    assert f"{rewards[0]:.3f} to {rewards[-1]:.3f}".replace("0.", ".") in (ROOT / "README.md").read_text("utf-8")


def test_the_readme_shows_its_lines() -> None:
    [shown] = re.findall(r"```text\n(groups = .*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    lines = [line.strip() for line in (EXAMPLES / "rl_loop.py").read_text("utf-8").splitlines()]
    places = [lines.index(line) for line in shown.splitlines()]
    assert places == sorted(places)
    assert len(places) == 5
