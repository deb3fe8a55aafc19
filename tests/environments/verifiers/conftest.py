"""A folder in which a tiny chat model is trained in environments of verifiers, and the Python that has these."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.environments.program.conftest import desk

__all__ = ["desk"]


@pytest.fixture(scope="session")
def python() -> str:
    """AGENTGRPO_VERIFIERS_PYTHON, as verifiers asks for older packages than others do; or the one that runs this."""
    found = os.environ.get("AGENTGRPO_VERIFIERS_PYTHON", sys.executable)
    asked = subprocess.run(
        [found, "-c", "import verifiers; verifiers.load_environment"], capture_output=True, check=False
    )
    if asked.returncode:
        pytest.skip(f"{found} has no verifiers<0.2; AGENTGRPO_VERIFIERS_PYTHON=PATH names one that has")
    return found
