"""Reading a run's directory while it may still be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.records.run_dir import RunDir, TrajectoryFile


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    for name in ("train-000010", "train-000002", "eval-end-greedy", "eval-rag_top_k-greedy", "notes"):
        path = tmp_path / "trajectories" / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    (tmp_path / "trajectories" / "train-000002.timings.jsonl").write_text('{"id":"a/0","time_tools":0.5}\n')
    for step in (100, 20):
        (tmp_path / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    (tmp_path / "config.yaml").write_text("run:\n  seed: 3\n")
    return RunDir(tmp_path)


def test_what_is_there(run: RunDir) -> None:
    folder = run.path / "trajectories"
    assert run.trajectory_files() == [
        TrajectoryFile(path=folder / "train-000002.jsonl", step=2),
        TrajectoryFile(path=folder / "train-000010.jsonl", step=10),
        TrajectoryFile(path=folder / "eval-end-greedy.jsonl", policy="end", mode="greedy"),
        TrajectoryFile(path=folder / "eval-rag_top_k-greedy.jsonl", policy="rag_top_k", mode="greedy"),
    ]
    assert run.trajectory_files()[0].clocks() == {"a/0": {"id": "a/0", "time_tools": 0.5}}
    assert run.trajectory_files()[1].clocks() == {}
    assert [*run.checkpoints().items()] == [(s, run.path / f"checkpoints/step-{s:06d}") for s in (20, 100)]
    assert (run.config, run.environment, run.evaluation, run.metrics()) == ({"run": {"seed": 3}}, {}, None, [])
    assert repr(run) == f"RunDir({str(run.path)!r})"


def test_a_file_by_name_by_step_and_by_itself(run: RunDir) -> None:
    assert run.trajectory_file(name="train-000002.jsonl") == run.trajectory_file(step="2")
    assert run.trajectory_file().name == "eval-end-greedy"
    (run.path / "trajectories" / "eval-end-greedy.jsonl").unlink()
    assert run.trajectory_file().name == "train-000010"


def test_a_row_that_is_being_written_is_left_out_and_a_broken_one_refused(run: RunDir) -> None:
    log = run.path / "metrics.jsonl"
    log.write_text('{"step":0,"loss":1.5}\n{"step":1,"lo')
    assert run.metrics() == [{"step": 0, "loss": 1.5}]
    log.write_text('{"step":0,"lo\n{"step":1,"loss":1.5}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:1: "):
        run.metrics()


@pytest.mark.parametrize(("name", "text"), [("eval.json", "[]"), ("eval.json", "{"), ("config.yaml", "- a\n")])
def test_files_that_cannot_be_read_are_named(run: RunDir, name: str, text: str) -> None:
    (run.path / name).write_text(text)
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        _ = (run.config, run.evaluation)


@pytest.mark.parametrize("text", ["{", "[]\n", "{}\n"])
def test_clocks_that_cannot_be_read_are_named(run: RunDir, text: str) -> None:
    file = run.trajectory_file(step="2")
    file.clocks_path.write_text(text)
    with pytest.raises(DataError, match=r"train-000002\.timings\.jsonl is damaged: "):
        file.clocks()


def test_no_run(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    with pytest.raises(ConfigError, match=r"firs does not exist; .*Did you mean 'first'"):
        RunDir(tmp_path / "firs")
    with pytest.raises(ConfigError, match="has no trajectories; give the directory of a run"):
        RunDir(tmp_path)
