"""Training runs that sample on servers: a tiny model behind stand-ins of vLLM."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import pytest

from agentgrpo.core.errors import NoServer, Preempted, TrainingError
from agentgrpo.core.types import Task
from agentgrpo.engines.remote import server as pool
from agentgrpo.engines.remote.vllm import vllm
from agentgrpo.run.parts import Parts, Progress
from agentgrpo.training.checkpoint import LoadedCheckpoint
from agentgrpo.training.process_group import Alone
from agentgrpo.training.weight_files import PolicyFiles
from tests.engines import tiny
from tests.engines.remote.stand_in import StandIn, moved
from tests.run.tiny_run import TinyRun, look_away, one_turn, rows, saved_steps, versions
from tests.thorough import late


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(pool, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(pool, "MOST_PAUSE_S", 0.05)
    caplog.set_level("CRITICAL")


class Served(Protocol):
    @property
    def url(self) -> str: ...


@dataclass
class ServedRun(TinyRun):
    """TinyRun, sampling on `servers`."""

    servers: Sequence[Served] = ()
    wait_s: float = 10.0
    attempts: int = 3
    sync: str = "disk"

    def parts(self, checkpoint: LoadedCheckpoint | None = None) -> Parts:
        parts = super().parts(checkpoint)
        engine = vllm(
            run_seed=7,
            context_limit=512,
            weights=PolicyFiles(parts.trainer.policy, Alone()),
            sync_dir=self.run_dir / "sync",
            rank=0,
            urls=tuple(server.url for server in self.servers),
            wait_s=self.wait_s,
            attempts=self.attempts,
            sync=self.sync,
            unused_ids=parts.trainer.policy.vocabulary.unused,
        )
        return replace(parts, engine=engine, runner=one_turn(engine, self.before))

    async def train(self, parts: Parts, progress: Progress) -> None:
        try:
            await super().train(parts, progress)
        finally:
            await parts.engine.close()


def other_model(tmp_path: Path) -> StandIn:
    """A server that was started with other weights of the same shape."""
    return StandIn(moved(tiny.model("qwen2")), tiny.tokenizer())


def refuse_stale_steps(run: ServedRun, steps: int) -> None:
    """Every step has trained on what the weights before it have sampled, and only on that."""
    found = rows(run.run_dir)
    assert [row["step"] for row in found] == list(range(steps))
    assert [versions(run.run_dir, step) for step in range(steps)] == [{step} for step in range(steps)]
    assert max(row["policy/logprob_gap_max"] for row in found) < 1e-4
    assert max(row["policy/canary_gap"] for row in found) < 1e-4
    assert len({row["reward/mean"] for row in found}) > 1


async def test_a_run_trains_on_what_servers_sample_from_its_own_weights(tmp_path: Path) -> None:
    async with other_model(tmp_path) as one, other_model(tmp_path) as two:
        run = ServedRun(run_dir=tmp_path / "run", servers=(one, two))
        await run.go()
        refuse_stale_steps(run, 4)
        # the others ask whether log-probs are those of what was sampled from
        sampled = [sum("stop" in r for r in server.requests) for server in (one, two)]
        assert sum(sampled) == 4 * 9
        assert min(sampled) >= 4 * 4


@pytest.mark.parametrize("sync", ["disk", pytest.param("gloo", marks=pytest.mark.slow)])
async def test_a_server_that_is_killed_and_comes_back_with_old_weights_spoils_nothing(
    tmp_path: Path, sync: str
) -> None:
    async with other_model(tmp_path) as one:

        async def restarts(stream: str, task: Task, sample_index: int) -> None:
            if stream == "train/2" and sample_index == 1 and not restarted:
                restarted.append(stream)
                await one.restart()

        restarted: list[str] = []
        run = ServedRun(
            run_dir=tmp_path / "run", servers=(one,), before=restarts, rollout={"episode_retries": 2}, sync=sync
        )
        await run.go()
        assert restarted
        refuse_stale_steps(run, 4)


@pytest.mark.slow
async def test_a_server_that_dies_for_good_leaves_the_work_to_the_other(tmp_path: Path) -> None:
    async with other_model(tmp_path) as one, other_model(tmp_path) as two:

        async def dies(stream: str, task: Task, sample_index: int) -> None:
            if stream == "train/1" and not died:
                died.append(stream)
                await one.stop()

        died: list[str] = []
        run = ServedRun(run_dir=tmp_path / "run", servers=(one, two), before=dies)
        await run.go()
        assert died == ["train/1"]
        await one.start()
        refuse_stale_steps(run, 4)


@pytest.mark.clock
@pytest.mark.parametrize("attempts", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.slow
async def test_servers_that_are_lost_for_good_end_the_step_and_fail_no_episode(tmp_path: Path, attempts: int) -> None:
    """When the second of nine episodes of a step begins, and for less than half of them none would be left."""
    async with other_model(tmp_path) as one, other_model(tmp_path) as two:

        async def dies(stream: str, task: Task, sample_index: int) -> None:
            if stream == "train/2" and not died:
                died.append(stream)
                await asyncio.gather(one.stop(), two.stop())

        died: list[str] = []
        run = ServedRun(
            run_dir=tmp_path / "run",
            servers=(one, two),
            before=dies,
            wait_s=3.5,  # longer than an episode may take, and none takes so long on a busy machine
            attempts=attempts,
            rollout={"episode_timeout_s": 3.0, "max_concurrent_episodes": 2},
            run={"checkpoint_every": 4, "max_error_fraction": 1.0},
        )
        began = time.monotonic()
        with pytest.raises(NoServer, match=r"no server for 3\.5 s"):
            await run.go()
        assert not late(began, 30)
        assert ([row["step"] for row in rows(run.run_dir)], saved_steps(run.run_dir)) == ([0, 1], [0, 2])
        await asyncio.gather(one.start(), two.start())
        await replace(run, before=at_rest, rollout={}).go()
        refuse_stale_steps(run, 4)


async def test_servers_that_are_lost_before_the_sync_end_the_run_behind_the_step(tmp_path: Path) -> None:
    async with other_model(tmp_path) as one:

        def dies(step: int, tags: Mapping[str, float]) -> None:
            one.lasts = 0 if step == 1 and "loss" in tags else one.lasts

        run = ServedRun(run_dir=tmp_path / "run", servers=(one,), look=dies, wait_s=0.2, run={"checkpoint_every": 4})
        with pytest.raises(NoServer):
            await run.go()
        assert ([row["step"] for row in rows(run.run_dir)], saved_steps(run.run_dir)) == ([0, 1], [0, 2])
        one.lasts = 10**9
        await replace(run, look=look_away).go()
        assert [versions(run.run_dir, step) for step in range(4)] == [{step} for step in range(4)]
        assert ["policy/canary_gap" in row for row in rows(run.run_dir)] == [True, False, True, True]


@pytest.mark.clock
@pytest.mark.parametrize("comes_back", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_a_stop_request_while_servers_are_lost_loses_no_finished_step(tmp_path: Path, comes_back: bool) -> None:
    """They would be waited for longer than the run may take to leave."""
    async with other_model(tmp_path) as one:

        def dies(step: int, tags: Mapping[str, float]) -> None:
            if step == 1 and "loss" in tags:
                one.lasts = 0
                os.kill(os.getpid(), signal.SIGTERM)
                if comes_back:
                    asyncio.get_running_loop().call_later(0.2, setattr, one, "lasts", 10**9)

        run = ServedRun(run_dir=tmp_path / "run", servers=(one,), look=dies, wait_s=300.0, grace_s=4.0)
        began = time.monotonic()
        with pytest.raises(Preempted, match="stopped by SIGTERM; start again"):
            await run.go()
        assert not late(began, 4)
        assert ([row["step"] for row in rows(run.run_dir)], saved_steps(run.run_dir)) == ([0, 1], [0, 1, 2])
        assert ["policy/canary_gap" in row for row in rows(run.run_dir)] == [True, comes_back]
        one.lasts = 10**9
        await replace(run, look=look_away).go()
        assert [versions(run.run_dir, step) for step in range(4)] == [{step} for step in range(4)]


async def test_servers_that_take_no_weights_end_the_run_and_it_can_be_resumed(tmp_path: Path) -> None:
    async with other_model(tmp_path) as one:

        async def sticks(stream: str, task: Task, sample_index: int) -> None:
            one.is_stale = one.is_stale or stream == "train/1"

        run = ServedRun(run_dir=tmp_path / "run", servers=(one,), before=sticks)
        with pytest.raises(TrainingError, match="stale or damaged weights"):
            await run.go()
        assert [row["step"] for row in rows(run.run_dir)] == [0]
        one.is_stale = False
        await replace(run, before=at_rest).go()
        refuse_stale_steps(run, 4)


async def at_rest(stream: str, task: Task, sample_index: int) -> None: ...


async def test_rollouts_one_step_ahead_sample_from_the_weights_one_update_behind(tmp_path: Path) -> None:
    async with other_model(tmp_path) as one:
        run = ServedRun(run_dir=tmp_path / "run", servers=(one,), algorithm={"max_staleness": 1})
        await run.go()
        assert [versions(run.run_dir, step) for step in range(4)] == [{0}, {0}, {1}, {2}]
