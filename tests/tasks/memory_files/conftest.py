"""The fixtures: invented files in the shape of the published ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentgrpo.tasks.memory_files.dataset import MemoryFiles

FIXTURES = Path(__file__).parent / "fixtures"


def load(file: str, format: str = "jsonl", **settings: Any) -> MemoryFiles:
    return MemoryFiles(path=str(FIXTURES / file), format=format, **settings)
