"""A run that is refused or interrupted leaves its directory as it found it, and nothing of anybody else's goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgrpo.cli.main import main
from agentgrpo.core.durable import RunLock, write_atomic
from agentgrpo.core.errors import AgentGrpoError, ConfigError, DataError, TrainingError
from agentgrpo.run.resume import RestoreOnRefusal
from tests.e2e.conftest import SMALL_WORLD


def refused(run_dir: Path, error: BaseException, *more: str, is_ours: bool = False) -> None:
    def begin() -> None:
        restoring = RestoreOnRefusal(run_dir, is_ours=is_ours)
        run_dir.mkdir(parents=True, exist_ok=True)
        with RunLock(run_dir), restoring:
            for name in ("config.yaml", *more):
                (run_dir / name).parent.mkdir(exist_ok=True)
                write_atomic(run_dir / name, b"new")
            raise error

    with pytest.raises(type(error)):
        begin()


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("error", [ConfigError("no"), DataError("no")])
def test_what_a_refusal_made_goes_with_its_folders(error: AgentGrpoError, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    refused(tmp_path / "runs" / "x", error)
    assert left(tmp_path) == ["mine"]


def test_a_folder_that_was_there_stays_unless_it_was_made_for_this_run(tmp_path: Path) -> None:
    for name in ("mine", "ours"):
        (tmp_path / name).mkdir()
        refused(tmp_path / name, ConfigError("no"), is_ours=name == "ours")
    assert left(tmp_path) == ["mine"]


def test_what_was_there_before_stays(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("old")
    (tmp_path / "notes").touch()
    refused(tmp_path, ConfigError("no"), is_ours=True)
    assert left(tmp_path) == ["config.yaml", "notes"]
    assert (tmp_path / "config.yaml").read_text() == "old", "an evaluation, or a run that was stopped before its start"


def test_what_has_begun_before_it_is_refused_keeps_its_settings(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("old")
    (tmp_path / "trajectories").mkdir()
    refused(tmp_path, DataError("no"), "trajectories/eval-end-greedy.jsonl")
    assert (tmp_path / "config.yaml").read_text() == "new"


def test_what_came_while_the_lock_was_waited_for_is_somebody_else_s(tmp_path: Path) -> None:
    restoring = RestoreOnRefusal(tmp_path / "x", is_ours=False)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "config.yaml").write_text("theirs")
    with pytest.raises(ConfigError), RunLock(tmp_path / "x"), restoring:
        raise ConfigError("no")
    assert left(tmp_path / "x") == ["config.yaml"]


def test_once_there_is_more_all_of_it_stays(tmp_path: Path) -> None:
    refused(tmp_path / "x", ConfigError("no"), "metrics.jsonl")
    assert left(tmp_path / "x") == ["config.yaml", "metrics.jsonl", "run.lock"]


def test_a_run_that_fails_otherwise_can_be_gone_on_with(tmp_path: Path) -> None:
    refused(tmp_path / "x", TrainingError("no"))
    assert left(tmp_path / "x") == ["config.yaml", "run.lock"]


def test_training_does_not_begin_among_the_files_of_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "eval.json").write_text("{}")
    assert main(["train", "run.dir=x"]) == 2
    assert "run.dir=x already holds an evaluation; choose another directory" in capsys.readouterr().err
    assert left(tmp_path) == ["x", "x/eval.json"]


@pytest.mark.parametrize("given", [[], ["run.dir=new/x"]], ids=["made", "named"])
def test_on_the_command_line(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = ["experiment=none", "task.corpus=no.jsonl", "task.questions=no.jsonl", "model.path=no"]
    assert main(["train", *data, *given]) == 2
    assert "'no.jsonl' is not a file" in capsys.readouterr().err
    assert left(tmp_path) == ([] if given else ["runs"])


def test_a_refused_run_leaves_no_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "run.max_steps=-5"]) == 2
    assert left(tmp_path) == []


def test_what_ctrl_c_ends_before_it_has_begun_goes_too(tmp_path: Path) -> None:
    refused(tmp_path / "runs" / "x", KeyboardInterrupt())
    assert left(tmp_path) == []


def test_what_a_run_prepares_before_its_first_episode_goes_too(tmp_path: Path) -> None:
    """Its first checkpoint, a board and the file of its machine: then its evaluation is refused."""
    more = ("environment.json", "checkpoints/step-000000", "tensorboard/events", "timings.jsonl", "seals.jsonl")
    refused(tmp_path / "x", DataError("an evaluation over 1 task says nothing"), *more)
    assert left(tmp_path) == []
    (tmp_path / "notes").touch()
    refused(tmp_path, ConfigError("no"), *more)
    assert left(tmp_path) == ["notes"]


def test_once_an_episode_is_recorded_all_of_it_stays(tmp_path: Path) -> None:
    more = ("environment.json", "trajectories/eval-start-greedy.jsonl")
    refused(tmp_path / "x", DataError("no"), *more)
    assert left(tmp_path / "x") == ["config.yaml", "environment.json", "run.lock", "trajectories", more[1]]


def test_a_board_that_cannot_be_had_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTGRPO_CACHE", str(tmp_path / "cache"))  # which has no start weights
    assert main(["train", *SMALL_WORLD, "run.log_with=[tensorboard,swanlab]", f"run.dir='{tmp_path}/runs/x'"]) == 2
    assert "run.log_with names 'swanlab', whose package is not installed" in capsys.readouterr().err
    assert left(tmp_path) == []
