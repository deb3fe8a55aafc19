"""The bench of rollouts one step ahead: whole steps are measured, in both kinds of run, and compared pair by pair."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pipeline
import pytest
from works import TINY, works

MINI = replace(TINY, name="mini", hidden=32, layers=2, ffn=64, tasks=2, group_size=2, turns=2, tool_tokens=60)


def test_the_gain_is_a_median_over_pairs() -> None:
    assert pipeline.gain([1.5, 3.0, 8.0], [1.0, 1.0, 2.0]) == 3.0


@pytest.mark.slow
def test_a_step_of_tools_takes_at_least_their_latency() -> None:
    """One tool call per episode, all at once; with and without an update beside it."""
    slow = replace(MINI, latency_s=0.3)
    for staleness in (0, 1):
        wall, cpu = pipeline.step_seconds(slow, staleness, 1)
        assert wall > 0.3
        assert 0 < cpu < wall + 1


@pytest.mark.slow
def test_it_runs_and_says_what_it_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--works", "tiny/mini", "--latencies", "0", "--pairs", "1", "--steps", "1"]
    monkeypatch.setattr(sys, "argv", ["pipeline.py", *arguments])
    monkeypatch.setattr(pipeline.conditions, "require_works", lambda names: None)
    monkeypatch.setattr(pipeline, "works", lambda: works() | {"tiny/mini": MINI})
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        pipeline.main()
    finally:
        if cores is not None:
            os.sched_setaffinity(0, cores)
    lines = [line for line in capsys.readouterr().out.splitlines() if "tiny/mini" in line]
    assert lines[0].split("│")[2:4] == [" 0         ", " 1     "]
    assert all(line.rstrip(" │").endswith("×") for line in lines)
