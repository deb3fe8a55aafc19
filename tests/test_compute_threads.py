"""Compute threads: how many, and that they sleep while they wait."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from agentgrpo.config.hardware import Hardware
from agentgrpo.core.compute_threads import AT_MOST, COUNT, WAIT, usual_threads

CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.mark.parametrize(
    ("said", "threads"),
    [("1", 1), ("7", 7), ("", min(AT_MOST, CPUS)), ("0", min(AT_MOST, CPUS)), ("2,1", min(AT_MOST, CPUS))],
)
def test_the_number_that_the_environment_says_is_taken(
    monkeypatch: pytest.MonkeyPatch, said: str, threads: int
) -> None:
    monkeypatch.setenv(COUNT, said)
    assert usual_threads() == Hardware().num_threads == threads
    assert Hardware(threads=3).num_threads == 3


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system ties no process to a CPU")
def test_only_the_cpus_count_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COUNT, raising=False)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usual_threads() == 1
    finally:
        os.sched_setaffinity(0, before)


def waits(env: Mapping[str, str]) -> str:
    """What GNU's OpenMP says of itself, as torch has loaded it."""
    code = "import agentgrpo, torch; torch.ones(2) @ torch.ones(2)"
    env = {**env, "OMP_DISPLAY_ENV": "TRUE"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return next((line.split("'")[1] for line in done.stderr.splitlines() if WAIT in line), "")


def test_who_waits_sleeps_unless_the_user_says_otherwise() -> None:
    env = {key: value for key, value in os.environ.items() if key != WAIT}
    if not (said := waits(env)):
        pytest.skip("torch has no OpenMP here that says how it waits")
    assert said == "PASSIVE"
    assert waits({**env, WAIT: "ACTIVE"}) == "ACTIVE"
