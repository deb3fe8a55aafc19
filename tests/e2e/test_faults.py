"""A retrieval server that goes wrong in the middle of a run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agentgrpo.cli.main import main
from agentgrpo.records.trajectories import read_trajectories
from agentgrpo.retrieval.bm25 import Bm25Backend
from agentgrpo.worlds.almanac.dataset import Almanac
from tests.e2e.conftest import Run, rows
from tests.retrieval.server import FAULTS, Behaviour, Server, say

SETTINGS = [
    "retriever=http",
    "retriever.timeout_s=30",
    "retriever.retries=1",
    "retriever.backoff_s=0.01",
    "retriever.max_batch=4",
    "rollout.episode_retries=0",
    "rollout.tasks_per_step=4",
    "rollout.group_size=4",
    "run.checkpoint_every=1",
    "run.eval_every=0",
    "run.final_eval=false",
]


class Searcher:
    """A real retrieval server on a thread of its own. After `first` requests it answers every `every`-th with `fault`,
    where there is one; with `once` never the same request again. (How many requests a run makes depends on which
    queries meet in one batch.)"""

    def __init__(self) -> None:
        self.fault: Behaviour | None = None
        self.first, self.every, self.once = 0, 1, False
        self.served = 0
        self._failed: list[Any] = []
        self._backend = Bm25Backend(
            Almanac(num_companies=40, dev_companies=5, test_companies=40).corpora()["vdb"], stemmer="english"
        )
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait(10)

    @property
    def num_failed(self) -> int:
        return len(self._failed)

    async def _behave(self, request: Any, writer: asyncio.StreamWriter) -> None:
        self.served += 1
        is_spared = self.once and request in self._failed
        if self.fault is not None and self.served > self.first and self.served % self.every == 0 and not is_spared:
            self._failed.append(request)
            await self.fault(request, writer)
            return
        found = self._backend.search_batch(request["queries"], request["topk"])
        await say(
            {
                "result": [
                    [{"document": {"id": p.id, "contents": f'""\n{p.text}'}, "score": p.score} for p in row]
                    for row in found
                    if isinstance(row, list)
                ]
            }
        )(request, writer)

    def _run(self) -> None:
        async def serve() -> None:
            self._stop = asyncio.Event()
            async with Server(self._behave) as server:
                self.url = server.url
                self._ready.set()
                await self._stop.wait()

        self._loop.run_until_complete(serve())
        self._loop.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)


@pytest.fixture
def searcher() -> Iterator[Searcher]:
    searcher = Searcher()
    yield searcher
    searcher.close()


@pytest.mark.parametrize(
    "kind",
    ["500", *(pytest.param(k, marks=pytest.mark.slow) for k in ("200 and HTML", "drips a body", "resets in mid-body"))],
)
@pytest.mark.slow
def test_faults_are_counted_by_kind_and_never_trained_on(train: Run, searcher: Searcher, kind: str) -> None:
    behaviour, counted = FAULTS[kind]
    searcher.fault, searcher.first, searcher.every = behaviour, 2, 2
    arguments = [*SETTINGS, f"retriever.url='{searcher.url}'", "retriever.retries=0", "run.max_error_fraction=1"]
    patience = ["retriever.timeout_s=1"] if counted == "timeout" else []
    run_dir = train(*arguments, *patience, "run.max_steps=2")
    metrics = rows(run_dir / "metrics.jsonl")
    assert sum(row.get(f"failures/{counted}", 0.0) for row in metrics) > 0, [sorted(row) for row in metrics]
    failed = scored = 0
    for step in range(2):
        for record in read_trajectories(run_dir / "trajectories" / f"train-{step:06d}.jsonl"):
            if record.error is None:
                scored += 1
            else:
                failed += 1
                assert (record.reward, record.advantage) == (None, None)
                assert record.error["kind"] == counted
    assert failed == sum(v for row in metrics for tag, v in row.items() if tag.startswith("failures/"))
    assert scored == sum(row["episodes/scored"] for row in metrics)


@pytest.mark.slow
def test_an_outage_stops_the_run_which_goes_on_when_it_is_over(
    train: Run, searcher: Searcher, capsys: pytest.CaptureFixture[str]
) -> None:
    searcher.fault, searcher.first = FAULTS["500"][0], 4
    run_dir = train(*SETTINGS, f"retriever.url='{searcher.url}'", "run.max_steps=3", code=8)
    assert "failed for infrastructure reasons (http_500: " in capsys.readouterr().err
    metrics = run_dir / "metrics.jsonl"
    assert not metrics.exists() or len(rows(metrics)) < 3  # how far it came depends on how searches were batched
    searcher.fault = None
    assert main(["resume", str(run_dir), f"retriever.url='{searcher.url}'"]) == 0
    assert [row["step"] for row in rows(run_dir / "metrics.jsonl")] == [0, 1, 2]


@pytest.mark.slow
def test_faults_that_pass_leave_no_trace(train: Run, searcher: Searcher) -> None:
    """Every third request fails once and is retried: weights and records are those of the run without a fault."""
    arguments = [*SETTINGS, f"retriever.url='{searcher.url}'", "run.max_steps=2", "retriever.retries=3"]
    whole = train(*arguments, name="whole")
    searcher.fault, searcher.every, searcher.once = FAULTS["500"][0], 3, True
    faulty = train(*arguments, name="faulty")
    assert searcher.num_failed > 2
    for name in ("metrics.jsonl", "trajectories/train-000001.jsonl", "checkpoints/step-000002/model.safetensors"):
        assert (whole / name).read_bytes() == (faulty / name).read_bytes(), name
