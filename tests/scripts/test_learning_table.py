"""What several runs come to: the mean and the range of the figures that eval.json has of each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.learning_table import table

FIGURES = {"quality": "correctness", "by_kind": {"correctness": "correctness", "search_rounds": "rounds"}}


def run(folder: Path, before: float, after: float, reward: float) -> Path:
    mode = {
        "baseline": {"correctness": before, "search_rounds": 2.0, "reward": 0.1},
        "trained": {"correctness": after, "search_rounds": 1.0, "reward": reward},
        "difference": {"correctness": [after - before, 0.0, 1.0]},
    }
    folder.mkdir()
    result = {"greedy": mode, "sampled": mode, "oracle": {"reward": 0.8}, "figures": FIGURES, "verdict": "PASS"}
    (folder / "eval.json").write_text(json.dumps(result), encoding="utf-8")
    return folder


def test_one_run_has_no_mean(tmp_path: Path) -> None:
    assert len(table([run(tmp_path / "a", 0.5, 0.75, 0.6)]).splitlines()) == 4


def test_the_mean_and_the_range_of_runs(tmp_path: Path) -> None:
    runs = [run(tmp_path / "a", 0.5, 0.75, 0.6), run(tmp_path / "b", 0.25, 0.75, 0.4)]
    *_, greedy, _sampled = table(runs).splitlines()
    assert greedy == (
        "| mean of 2 (range) | greedy | 0.375 (0.250 to 0.500) → 0.750 (0.750 to 0.750) | +37.5 (+25.0 to +50.0) |  | "
        "62.5% (50.0% to 75.0%) |  |"
    )


def test_a_run_without_evaluation_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"b has no eval\.json"):
        table([run(tmp_path / "a", 0.5, 0.75, 0.6), tmp_path / "b"])
