"""Question files of two published formats, mixed by weight, trained on and evaluated, by configuration alone."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from agentgrpo.cli.main import main
from agentgrpo.records.trajectories import read_trajectories
from agentgrpo.tasks.jsonl import export
from agentgrpo.worlds.almanac.dataset import Almanac
from tests.e2e.conftest import rows
from tests.tasks.questions.samples import lines, search_r1, table

SHORT = ["run.max_steps=2", "run.eval_every=0", "run.eval.tasks=6", "rollout.tasks_per_step=4", "rollout.group_size=4"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The questions of a small world as others would publish them: one half as NQ-open, the other as Search-R1."""
    folder = tmp_path / "data"
    world = Almanac(num_companies=12, dev_companies=4, test_companies=4)
    export(world, folder)
    for split in ("train", "test"):
        tasks = world.split(split)
        nq = [{"question": task.question, "answer": list(task.references)} for task in tasks[::2]]
        (folder / f"nq-{split}.jsonl").write_text(lines(*nq), encoding="utf-8")
        r1 = [search_r1(i, *task.references, split=split, question=task.question) for i, task in enumerate(tasks[1::2])]
        table(folder / f"{split}.parquet", *r1)
    return folder


@pytest.mark.slow
def test_two_formats_are_mixed_trained_on_and_evaluated(
    folder: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    arguments = [
        "experiment=none",
        "task=questions",
        "~task.sources.own",
        f"task.sources.nq.path={folder}/nq-train.jsonl",
        f"task.sources.nq.test_path={folder}/nq-test.jsonl",
        "task.sources.nq.weight=1",
        f"task.sources.r1.path={folder}/train.parquet",
        f"task.sources.r1.test_path={folder}/test.parquet",
        "task.sources.r1.weight=3",
        "task.dev_fraction=0",
        f"task.corpus={folder}/corpus.jsonl",
        f"task.web_corpus={folder}/web.jsonl",
        "judge=route",
        "~judge.routes.almanac",
        "+judge.routes.nq.name=exact_match",
        "model=path",
        f"model.path={start}",
        "environment.top_k=2",
        "rollout=almanac_tiny",
        "optimizer=tiny",
        "hardware.threads=1",
        "run.log_with=[]",
        "run.screen=plain",
    ]
    assert main(["train", *arguments, *SHORT, f"run.dir={run_dir}"]) == 0
    assert f"note: r1: {folder}/train.parquet is read as search_r1" in capsys.readouterr().out
    assert [row["step"] for row in rows(run_dir / "metrics.jsonl")] == [0, 1]
    for step in (0, 1):
        records = read_trajectories(run_dir / "trajectories" / f"train-{step:06d}.jsonl")
        asked = {record.id.rpartition("/")[0] for record in records}
        assert Counter(id.partition(":")[0] for id in asked) == {"nq": 1, "r1": 3}
    checkpoint = run_dir / "checkpoints" / "step-000002"
    assert main(["eval", "--ckpt", str(checkpoint), f"run.dir={tmp_path / 'again'}"]) == 0
    assert json.loads((tmp_path / "again" / "eval.json").read_text())["n"] == 6
    assert (tmp_path / "again" / "eval.json").read_bytes() == (run_dir / "eval.json").read_bytes()
