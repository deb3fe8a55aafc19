"""A user's own two files, from a directory with a space in its name, by configuration alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgrpo.cli import main
from agentgrpo.tasks.almanac import Almanac
from agentgrpo.tasks.jsonl import export
from tests.e2e.conftest import rows

QUIET = ["hardware.threads=1", "run.screen=quiet", "run.log_with=[]"]
SHORT = ["run.max_steps=2", "run.eval_every=0", "run.eval.tasks=20", "rollout.tasks_per_step=4", "rollout.group_size=4"]


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
        "agent.top_k=2",
        f"run.dir='{run_dir}'",
        *QUIET,
    ]


def test_two_files_train_and_evaluate(folder: Path, start: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "a run"
    assert main(["train", *own(folder, start, run_dir), *SHORT]) == 0
    assert [row["step"] for row in rows(run_dir / "metrics.jsonl")] == [0, 1]
    assert json.loads((run_dir / "eval.json").read_text())["n"] == 20
    again = tmp_path / "again"
    checkpoint = run_dir / "checkpoints" / "step-000002"
    assert main(["eval", "--ckpt", str(checkpoint), *own(folder, start, again), "run.eval.tasks=20"]) == 0
    assert (again / "eval.json").read_bytes() == (run_dir / "eval.json").read_bytes()


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
