"""A run over indexes that agentgrpo index has built: from a folder, from PostgreSQL, from Qdrant."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from agentgrpo.cli.main import main
from agentgrpo.tasks.jsonl import export
from agentgrpo.worlds.almanac.dataset import Almanac
from tests.e2e.conftest import rows
from tests.retrieval.postgres import running_postgres

SHORT = [
    "run.max_steps=2",
    "run.eval_every=0",
    "run.final_eval=false",
    "rollout=almanac_tiny",
    "optimizer=tiny",
    "rollout.tasks_per_step=2",
    "rollout.group_size=2",
    "hardware.threads=1",
    "run.screen=quiet",
    "run.log_with=[]",
]
SMALL = "retriever.embedder.dim=64"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["faiss_index", "pgvector", "qdrant"])
def test_the_same_episodes_whatever_keeps_the_vectors(kind: str, start: Path, tmp_path: Path) -> None:
    files = export(Almanac(num_companies=8, dev_companies=1, test_companies=1), tmp_path)
    task = [
        "experiment=none",
        "task=jsonl",
        f"task.questions={files['questions']}",
        "model=path",
        f"model.path='{start}'",
    ]
    corpus = str(files["corpus"])
    shm = Path("/dev/shm")  # Qdrant without a server syncs the disk for every passage
    with (
        tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as memory,
        running_postgres() if kind == "pgvector" else nullcontext() as dsn,
    ):
        folder = str(tmp_path / "index")
        assert main(["index", "--corpus", corpus, "--out", folder, SMALL]) == 0
        where = {
            "faiss_index": [f"retriever.path={folder}"],
            "pgvector": [f"retriever.dsn='{dsn}'"],
            "qdrant": [f"retriever.path={memory}/q"],
        }[kind]
        retriever = [f"retriever={kind}", *where, SMALL]
        if kind != "faiss_index":
            assert main(["index", "--corpus", corpus, *retriever]) == 0
        assert main(["train", *task, *retriever, f"run.dir={tmp_path}/a", *SHORT]) == 0
        wanted = ["retriever=faiss_index", f"retriever.path={folder}", SMALL]
        assert main(["train", *task, *wanted, f"run.dir={tmp_path}/b", *SHORT]) == 0
    assert [row["step"] for row in rows(tmp_path / "a" / "metrics.jsonl")] == [0, 1]
    found, expected = ([p.read_bytes() for p in trajectories(tmp_path / name)] for name in "ab")
    assert len(found) == 2
    assert found == expected
    assert b"<information>" in found[0]


def trajectories(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "trajectories").glob("train-??????.jsonl"))
