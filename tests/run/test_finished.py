"""What a finished run came to is not worked out again, unless something has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentgrpo.config.settings import RunSettings
from agentgrpo.records.trajectories import write_trajectories
from agentgrpo.run.resume import give_up_result, kept_result, set_result_aside

CONFIG = {
    "task": {"name": "almanac"},
    "run": {"dir": "x", "max_steps": 4, "screen": "auto", "seed": 0, "eval": {"k": 1}},
}
RESULT = {"verdict": "PASS", "figures": {}}


def finished(run_dir: Path, *, end_step: int = 4, result: Any = RESULT) -> Path:
    (run_dir / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    (run_dir / "eval.json").write_text(json.dumps(result))
    path = run_dir / "trajectories" / "eval-end-sampled.jsonl"
    path.parent.mkdir()
    of = {"step": end_step, "seed": 0, "split": "test", "environment": "search", "record_tokens": False}
    write_trajectories(path, scored=[], advantages=[], dropped=[], **of)  # type: ignore[arg-type]
    return run_dir


def kept(run_dir: Path, *, step: int = 4, task: str = "almanac", final_eval: bool = True, **run: Any) -> Any:
    settings = RunSettings(dir=str(run_dir), max_steps=run.get("max_steps", 4), final_eval=final_eval)
    return kept_result(settings, step, {"task": {"name": task}, "run": {**CONFIG["run"], **run}})


@pytest.mark.parametrize(
    "run", [{}, {"dir": "moved"}, {"screen": "quiet"}, {"max_steps": 3}, {"eval": {"k": 1, "baselines": True}}]
)
def test_the_same_run_has_its_result(run: dict[str, Any], tmp_path: Path) -> None:
    assert kept(finished(tmp_path), **run) == RESULT


@pytest.mark.parametrize(
    "now", [{"max_steps": 5}, {"step": 3}, {"seed": 1}, {"eval": {"k": 2}}, {"task": "workshop"}, {"final_eval": False}]
)
def test_something_is_left_to_do(now: dict[str, Any], tmp_path: Path) -> None:
    assert kept(finished(tmp_path), **now) is None


def test_the_result_of_other_weights_is_none(tmp_path: Path) -> None:
    assert kept(finished(tmp_path, end_step=2)) is None


@pytest.mark.parametrize("result", [[], {"verdict": "PASS"}], ids=["damaged", "old"])
def test_a_result_that_cannot_be_read_is_none(result: Any, tmp_path: Path) -> None:
    assert kept(finished(tmp_path, result=result)) is None


def test_trajectories_of_another_version_are_no_error(tmp_path: Path) -> None:
    (finished(tmp_path) / "trajectories" / "eval-end-sampled.jsonl").write_text('{"schema_version":1}\n')
    assert kept(tmp_path) is None


@pytest.mark.parametrize(
    ("max_steps", "final_eval", "moved"),
    [
        (4, True, ["orphans/eval.json"]),
        (4, False, []),
        (6, True, ["orphans/eval-end-sampled.jsonl", "orphans/eval-end-sampled.timings.jsonl", "orphans/eval.json"]),
        (6, False, ["orphans/eval-end-sampled.jsonl", "orphans/eval-end-sampled.timings.jsonl", "orphans/eval.json"]),
    ],
)
def test_a_result_of_weights_that_will_not_be_the_last_is_set_aside(
    max_steps: int, final_eval: bool, moved: list[str], tmp_path: Path
) -> None:
    run = RunSettings(dir=str(finished(tmp_path)), max_steps=max_steps, final_eval=final_eval)
    assert [give_up_result(run, 4), give_up_result(run, 4)] == [bool(moved), False]
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob("orphans/*")) == moved
    assert (tmp_path / "eval.json").exists() is (not moved)


def test_an_evaluation_in_the_place_of_another_sets_its_result_aside_whatever_the_run_evaluates(tmp_path: Path) -> None:
    finished(tmp_path)
    for _ in range(2):
        set_result_aside(tmp_path)
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("eval.json")] == ["orphans/eval.json"]


@pytest.mark.parametrize(("limit", "is_kept"), [(5.0, True), (5.5, False)])
def test_a_run_that_has_used_up_its_cpu_seconds_is_finished(limit: float, is_kept: bool, tmp_path: Path) -> None:
    rows = [{"step": step, "time/cpu": 1.25} for step in range(4)]
    (finished(tmp_path) / "timings.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run = RunSettings(dir=str(tmp_path), max_steps=9, max_cpu_s=limit)
    assert (kept_result(run, 4, CONFIG) is not None) is is_kept
    give_up_result(run, 4)
    assert (tmp_path / "trajectories" / "eval-end-sampled.jsonl").exists() is is_kept
