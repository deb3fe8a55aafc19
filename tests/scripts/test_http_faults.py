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


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_every_fault_ends_typed_and_leaves_nothing(capsys: pytest.CaptureFixture[str], every: int) -> None:
    failed = soak(list(FAULTS)[::every], num_requests=4, concurrent=4)
    assert failed == 0, capsys.readouterr().out
