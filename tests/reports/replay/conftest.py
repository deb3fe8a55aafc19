"""The tiny policy that calls, made once, and runs of it that tests may read or copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.test_tools import start as _start
from tests.reports.replay import runs

start = _start
"""A policy with tools: six seconds."""


@pytest.fixture(scope="module")
def finished(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run, which no test changes."""
    return runs.train(start, tmp_path_factory.mktemp("finished"))


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "run"))
