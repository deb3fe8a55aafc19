"""Long files first: what is left at the end is short, so that no core waits for the other. Few generated examples,
unless --hypothesis-profile=thorough. And each test with as many compute threads as the first one had."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from tests.thorough import QUICK, THOROUGH

settings.register_profile("quick", max_examples=QUICK, deadline=None)
settings.register_profile("thorough", max_examples=THOROUGH, deadline=None)
settings.load_profile("quick")
# A shell has what it runs in the background ignore SIGINT, and nohup SIGHUP: the programs that are started here would
# inherit that. A handler they do not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

THREADS = torch.get_num_threads()
FIRST = ("tests/test_docs.py", "tests/e2e/")
"""Whole runs. The first of them makes start weights, which all others find in the cache."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        return next((i for i, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST))

    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """What is there by now stays, and no garbage collection looks at it again: every run ends with one."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """A run sets their number; sums depend on it."""
    torch.set_num_threads(THREADS)  # a fixture of a whole module may have made a run before
    yield
    torch.set_num_threads(THREADS)


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated crashes need no real disk."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
