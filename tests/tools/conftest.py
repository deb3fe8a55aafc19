"""What a test finds running is not what its tools have left: other tests of this process keep helpers of their own."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from tests.tools import leftovers


@pytest.fixture(autouse=True)
def foreign_processes() -> Iterator[None]:
    leftovers.foreign = set(psutil.Process().children(recursive=True))
    yield
    leftovers.foreign = set()
