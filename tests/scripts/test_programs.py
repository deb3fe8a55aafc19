"""The bench and the soak of programs: they run, do the same work in every form, and say what they found."""

from __future__ import annotations

import logging
import sys

import programs
import pytest

from scripts.soak import programs as soak


@pytest.mark.slow
def test_the_bench_compares_every_form_with_the_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["programs.py", "--episodes", "3", "--rounds", "1"])
    programs.main()
    rows = [line.split("│") for line in capsys.readouterr().out.splitlines() if "%" in line]
    assert [row[1].strip() for row in rows] == list(programs.FORMS)
    assert rows[0][5].strip() == "100.0%"


@pytest.mark.slow
def test_every_fault_ends_as_it_should_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["programs.py", "--episodes", "60"])
    try:
        assert soak.main() == 0
    finally:
        logging.disable(logging.NOTSET)
    assert capsys.readouterr().out.endswith(" passed, 0 failed\n")
