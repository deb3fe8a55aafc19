"""The short version of the soak: every fault a few times, all that it checks."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from scripts.soak.http_faults import soak
from tests.retrieval.server import FAULTS


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_every_fault_ends_typed_and_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    failed = soak(list(FAULTS), num_requests=4, concurrent=4)
    assert failed == 0, capsys.readouterr().out
