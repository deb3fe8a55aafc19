"""A user's own two files, from a directory with a space in its name, by configuration alone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from agentgrpo.cli.main import main
from agentgrpo.core.durable import MANIFEST
from agentgrpo.tasks.jsonl import export
from agentgrpo.training.policy import KNOWS_FORMAT
from agentgrpo.worlds.almanac.dataset import Almanac
from tests.e2e.conftest import rows

QUIET = ["hardware.threads=1", "run.screen=quiet", "run.log_with=[]"]
SHORT = ["run.max_steps=2", "run.eval_every=0", "run.eval.tasks=8", "rollout.tasks_per_step=4", "rollout.group_size=4"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "my own data"
    export(Almanac(num_companies=20, dev_companies=4, test_companies=4), folder)
    return folder


def own(folder: Path, start: Path, run_dir: Path) -> list[str]:
    return [
        "experiment=none",
        "task=jsonl",
        f"task.questions='{folder / 'questions.jsonl'}'",
        f"task.corpus='{folder / 'corpus.jsonl'}'",
        f"task.web_corpus='{folder / 'web.jsonl'}'",
        "model=path",
        f"model.path='{start}'",
        "environment.top_k=2",
        "rollout=almanac_tiny",
        "optimizer=tiny",
        f"run.dir='{run_dir}'",
        *QUIET,
    ]


@pytest.mark.slow
def test_two_files_train_and_evaluate(folder: Path, start: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "a run"
    assert main(["train", *own(folder, start, run_dir), *SHORT]) == 0
    assert [row["step"] for row in rows(run_dir / "metrics.jsonl")] == [0, 1]
    assert json.loads((run_dir / "eval.json").read_text())["n"] == 8
    assert opening(run_dir).startswith("Answer with searches.\nQuestion: ")  # its warm start taught it all the rest
    again = tmp_path / "again"
    checkpoint = run_dir / "checkpoints" / "step-000002"
    assert main(["eval", "--ckpt", str(checkpoint), *own(folder, start, again), "run.eval.tasks=8"]) == 0
    assert (again / "eval.json").read_bytes() == (run_dir / "eval.json").read_bytes()


def opening(run_dir: Path) -> str:
    """What the first episode begins with."""
    return str(rows(run_dir / "trajectories" / "train-000000.jsonl")[1]["rendered_prompt"])


@pytest.mark.parametrize("why", ["it is no warm start", "it learned other tags", "it is to be told"])
def test_a_model_that_does_not_know_the_tags_is_told_them_and_refused_where_that_leaves_no_room(
    folder: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], why: str
) -> None:
    """The start weights have 512 positions."""
    told: list[str] = []
    if why == "it is no warm start":
        start = Path(shutil.copytree(start, tmp_path / "start", ignore=shutil.ignore_patterns(MANIFEST)))
        config = json.loads((start / "config.json").read_text())
        assert json.loads(config.pop(KNOWS_FORMAT)) == {"name": "search"}
        (start / "config.json").write_text(json.dumps(config))
    elif why == "it learned other tags":
        told = ["environment.tags={search: find}"]
    else:
        told = ["model.describe_tools=true"]
    assert main(["train", *own(folder, start, tmp_path / "run"), *SHORT, *told]) == 2
    assert re.search(r"opens with \d{3,4} tokens, and the engine holds 512: no room is left", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("line", "reason"),
    [("{not json", "line 3"), ('{"id": "x"}', "line 3"), ('["a", "list"]', "line 3")],
)
def test_a_malformed_line_is_refused_by_file_number_and_reason(
    folder: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, reason: str
) -> None:
    path = folder / "corpus.jsonl"
    lines = path.read_text().splitlines()
    lines[2] = line
    path.write_text("\n".join(lines) + "\n")
    assert main(["train", *own(folder, start, tmp_path / "run"), *SHORT]) == 2
    message = capsys.readouterr().err
    assert str(path) in message
    assert reason in message
    assert message.count("\n") == 1


def test_everything_that_a_small_task_set_lacks_is_said_at_once(
    folder: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "questions.jsonl"
    rows_of = [json.loads(line) for line in path.read_text().splitlines()]
    few = [row for row in rows_of if row["split"] == "train"][:3]
    path.write_text("".join(json.dumps(row) + "\n" for row in few))
    settings = ["rollout.tasks_per_step=4", "run.eval_every=1"]
    assert main(["train", *own(folder, start, tmp_path / "run"), *settings]) == 2
    assert capsys.readouterr().err.endswith(
        "task=jsonl is too small for this run: it has 3 training tasks, fewer than rollout.tasks_per_step=4; an empty "
        "split 'test' (run.final_eval=false does without); an empty split 'dev' (run.eval_every=0 does without). Add "
        "tasks, or change these settings\n"
    )


@pytest.mark.slow
def test_other_settings_are_refused_before_anything_is_built(
    folder: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    assert main(["train", *own(folder, start, run_dir), *SHORT, "run.final_eval=false"]) == 0
    (folder / "corpus.jsonl").unlink()
    capsys.readouterr()
    assert main(["resume", str(run_dir), "environment.top_k=3"]) == 4
    assert capsys.readouterr().err == (
        "agentgrpo: this run cannot go on with other settings: environment.top_k was 2, is now 3. Resume without these "
        "overrides, or start a new run with them\n"
    )
