"""Weights sent over the network: the sender, what a worker of vLLM inherits, and the engine over both."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed import PrefixStore

from agentgrpo.core.errors import ConfigError, NoServer
from agentgrpo.engines.remote import server as pool_module
from agentgrpo.engines.remote import transfer
from agentgrpo.engines.remote.transfer import GivenUp, Sending, TransferError, WeightReceiver, _Group
from agentgrpo.engines.remote.vllm import vllm
from agentgrpo.training.process_group import Alone
from agentgrpo.training.weight_files import PolicyFiles
from tests.engines.remote.stand_in import Worker, moved
from tests.engines.remote.test_vllm import KEY, PROMPT, SAMPLING, canary, policy, scored, serving
from tests.thorough import late

SENT = {
    "wide": torch.randn(300, 700, generator=torch.Generator().manual_seed(0)),
    "half": torch.randn(5, generator=torch.Generator().manual_seed(1)).bfloat16(),
    "scalar": torch.tensor(1.25),
    "none": torch.zeros(0, 4),
    "counts": torch.arange(7),
}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(pool_module, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(pool_module, "MOST_PAUSE_S", 0.05)
    caplog.set_level("CRITICAL")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of two files."""
    (tmp_path / "weights").mkdir()
    for i, names in enumerate((("wide", "half"), ("scalar", "none", "counts"))):
        save_file({name: SENT[name] for name in names}, tmp_path / "weights" / f"model-{i}.safetensors")
    return tmp_path / "weights"


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def sending(folder: Path, receivers: int = 1) -> Sending:
    return Sending(folder, server_host="127.0.0.1", receivers=receivers, backend="gloo", timeout_s=20.0)


def failure(found: Future[None], within_s: float) -> BaseException | None:
    return found.exception(timeout=within_s)


@pytest.mark.parametrize("receivers", [1, 3])
def test_every_worker_is_given_every_tensor_to_the_last_bit(
    folder: Path, threads: ThreadPoolExecutor, receivers: int
) -> None:
    workers = [Worker() for _ in range(receivers)]
    sent = sending(folder, receivers)
    for found in [threads.submit(w.agentgrpo_receive, **sent.call) for w in workers] + [threads.submit(sent.run)]:
        found.result(timeout=20)
    for worker in workers:
        assert worker.tensors.keys() == SENT.keys()
        for name, tensor in SENT.items():
            assert (worker.tensors[name].dtype, worker.tensors[name].shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(worker.tensors[name], tensor)


class Failing(Worker):
    """After so many tensors."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def reload_weights(self, *, weights_iterator: Iterable[tuple[str, Tensor]]) -> None:
        for number, _ in enumerate(weights_iterator, 1):
            if number == self.after:
                break
        raise ValueError("size mismatch")


@pytest.mark.parametrize("after", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 10**9))])
@pytest.mark.parametrize("others", [0, 2])
def test_a_worker_that_fails_ends_the_transfer_and_says_why(
    folder: Path, threads: ThreadPoolExecutor, after: int, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle, or when all tensors are there. Another worker may wait for its tensor as long as for any."""
    monkeypatch.setattr(transfer, "PATIENCE_S", 3.0)
    more_than_waits_on_the_way = {f"wide{i}": torch.zeros(4000, 1000) for i in range(4)}
    save_file(more_than_waits_on_the_way, folder / "model-0.safetensors")
    sent = sending(folder, 1 + others)
    workers = [Failing(after), *(Worker() for _ in range(others))]
    received = [threads.submit(worker.agentgrpo_receive, **sent.call) for worker in workers]
    assert "ValueError: size mismatch" in str(failure(threads.submit(sent.run), 10))
    assert [failure(found, 10) for found in received] == [None] * len(workers)


def test_a_sender_that_fails_ends_all_workers_at_once(
    folder: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When some have what comes and wait for the next."""
    monkeypatch.setattr(transfer, "PATIENCE_S", 3.0)
    announced = Sending._announced

    def breaks(self: Sending) -> Iterator[Tensor]:
        for number, tensor in enumerate(announced(self)):
            if number == 2:
                raise OSError("Input/output error")
            yield tensor

    monkeypatch.setattr(Sending, "_announced", breaks)
    sent = sending(folder, 2)
    workers = [Worker(), Worker()]
    received = [threads.submit(worker.agentgrpo_receive, **sent.call) for worker in workers]
    assert "Input/output error" in str(failure(threads.submit(sent.run), 10))
    assert [failure(found, 10) for found in received] == [None, None]
    assert [worker.tensors for worker in workers] == [{}, {}]


def test_a_sender_that_is_killed_ends_its_workers_at_once(
    folder: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once all are connected. Before that gloo waits for the connection."""
    connected, enter = Semaphore(0), transfer._Group.__enter__

    def entered(group: transfer._Group) -> transfer._Group:
        connected.release()
        return enter(group)

    monkeypatch.setattr(transfer._Group, "__enter__", entered)
    code = (
        "import json, os, sys\n"
        "from pathlib import Path\n"
        "from agentgrpo.engines.remote.transfer import Sending, _Group\n"
        "sent = Sending(Path(sys.argv[1]), server_host='127.0.0.1', receivers=2, backend='gloo', timeout_s=30)\n"
        "print(json.dumps(sent.call), flush=True)\n"
        "_Group.broadcast = lambda group, tensor: sys.stdin.readline() and os._exit(9)\n"
        "sent.run()\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        call = json.loads(process.stdout.readline())
        workers = [Worker(), Worker()]
        received = [threads.submit(worker.agentgrpo_receive, **call) for worker in workers]
        assert [connected.acquire(timeout=60) for _ in workers] == [True, True]
        process.stdin.write("\n")
        process.stdin.flush()
        assert [failure(found, 20) for found in received] == [None, None]
        assert [worker.tensors for worker in workers] == [{}, {}]
        assert process.wait(60) == 9


@pytest.mark.slow
def test_one_that_is_lost_while_they_connect_holds_up_the_others_no_longer_than_for_a_tensor(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has told its address, and never calls. Which of two calls the other is gloo's choice, by their ports."""
    monkeypatch.setattr(transfer, "PATIENCE_S", 2.0)
    stores = [transfer._store("127.0.0.1", 0, is_master=True) for _ in range(2)]
    for group in range(20):
        there, here = (PrefixStore(str(group), store) for store in stores)
        lost = threads.submit(_Group, there, "gloo", 0, 2, "127.0.0.1")
        while not there.check(["0/0"]):  # to wait in `get` would keep the other thread from this store
            time.sleep(0.01)
        here.set("0/0", there.get("0/0"))
        began = time.monotonic()
        try:
            _Group(here, "gloo", 1, 2, "127.0.0.1")
        except RuntimeError:
            assert 0.9 < (time.monotonic() - began) / transfer.PATIENCE_S < 4  # gloo's own: five times
            assert "timeout" in str(failure(lost, 10))
            return
    pytest.fail("it was always the lost one that was called")


class Slow(Worker):
    def reload_weights(self, *, weights_iterator: Iterable[tuple[str, Tensor]]) -> None:
        for _ in weights_iterator:
            time.sleep(0.3)
        self.tensors = {"all": torch.zeros(1)}


@pytest.mark.parametrize("joined", [*(pytest.param(n, marks=pytest.mark.slow) for n in (0, 1)), 2])
def test_a_transfer_that_is_given_up_ends_with_its_workers(
    folder: Path, threads: ThreadPoolExecutor, joined: int
) -> None:
    sent = sending(folder, receivers=2)
    workers = [Slow() for _ in range(joined)]
    received = [threads.submit(worker.agentgrpo_receive, **sent.call) for worker in workers]
    found = threads.submit(sent.run)
    time.sleep(0.5)
    assert not found.done()
    sent.give_up()
    assert isinstance(failure(found, 10), GivenUp)
    del sent, found
    assert [failure(one, 10) for one in received] == [None] * joined
    assert [worker.tensors for worker in workers] == [{}] * joined


def test_a_worker_that_calls_too_late_does_not_wait_for_long(
    folder: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "CONNECT_S", 0.3)
    sent = sending(folder)
    sent.give_up()
    assert isinstance(failure(threads.submit(sent.run), 30), GivenUp)
    call = sent.call
    del sent
    worker = Worker()
    assert failure(threads.submit(worker.agentgrpo_receive, **call), 30) is None  # of the 60 that it waits for a tensor
    assert worker.tensors == {}


def test_workers_that_never_call_are_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PATIENCE_S", 0.2)
    with pytest.raises(TransferError, match=r"0 of its 2 workers have called 127\.0\.0\.1 port \d+ within 0\.2 s"):
        sending(folder, receivers=2).run()


@pytest.mark.slow
def test_what_runs_in_the_server_needs_torch_and_safetensors_alone() -> None:
    code = "import json, sys, agentgrpo.engines.remote.transfer\nprint(json.dumps(list(sys.modules)))\n"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(json.loads(done.stdout))
    package = ("agentgrpo", "agentgrpo.engines", "agentgrpo.engines.remote", "agentgrpo.engines.remote.transfer")
    package += (
        "agentgrpo.core",
        "agentgrpo.core.compute_threads",
        "agentgrpo.core.reproducible",
    )  # standard library alone
    assert {name for name in loaded if name.startswith("agentgrpo")} == set(package)
    assert not {"hydra", "omegaconf", "httpx", "transformers", "rich"} & loaded


# --- the engine


@pytest.mark.parametrize("workers", [1, 2])
async def test_weights_that_are_sent_are_exact_in_every_version_and_no_path_is_named(
    tmp_path: Path, workers: int
) -> None:
    async with serving(tmp_path, sync="gloo") as (found, [server], trained):
        server.workers = workers
        for step in range(3):
            trained.model.load_state_dict(moved(trained.model).state_dict())
            await found.load_weights(step)
            assert await canary(found, trained, step) < 1e-4
        assert await scored(trained, await found.generate(PROMPT, SAMPLING, KEY)) < 1e-4
        assert str(tmp_path) not in str(server.orders)


async def test_a_server_that_comes_back_is_sent_the_weights_again(tmp_path: Path) -> None:
    async with serving(tmp_path, sync="gloo") as (found, [server], trained):
        await found.load_weights(4)
        await canary(found, trained)
        await server.restart()
        server.orders.clear()
        assert await scored(trained, await found.generate(PROMPT, SAMPLING, KEY)) < 1e-4
        assert ("/collective_rpc" in dict(server.orders), server.weights[:12]) == (True, "agentgrpo-v4")


@pytest.mark.clock
async def test_a_server_whose_workers_do_not_all_call_is_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transfer, "PATIENCE_S", 1.0)
    caplog.set_level("WARNING")
    async with serving(tmp_path, 2, sync="gloo") as (found, servers, trained):
        servers[0].workers, servers[0].lost_workers = 2, 1
        began = time.monotonic()
        await found.load_weights(0)
        assert not late(began, 10)
        assert [s.url for s in found.pool.serving] == [servers[1].url]
        assert await canary(found, trained) < 1e-4
    assert "1 of its 2 workers have called" in caplog.text


async def test_a_reload_that_fails_leaves_the_server_out_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Worker, *, weights_iterator: Any) -> None:
        next(iter(weights_iterator))
        raise RuntimeError("size mismatch for lm_head")

    monkeypatch.setattr(Worker, "reload_weights", fails)
    async with serving(tmp_path, sync="gloo", wait_s=0.1) as (found, _, _):
        with pytest.raises(NoServer, match="size mismatch for lm_head"):
            await found.load_weights(0)


async def test_a_server_that_cannot_receive_is_told_how_to_be_started(tmp_path: Path) -> None:
    async with serving(tmp_path, sync="gloo") as (found, [server], _):
        server.receives = False
        with pytest.raises(ConfigError, match=r"--worker-extension-cls agentgrpo\.engines\.remote\.transfer\.Weight"):
            await found.load_weights(0)


@pytest.mark.parametrize(
    ("sync", "lora", "says"),
    [
        ("http", False, r"engine\.sync=http; disk, gloo, nccl are allowed"),
        ("nccl", False, r"engine\.sync=nccl, and the model is on cpu; engine\.sync=gloo needs no CUDA device"),
        ("gloo", True, r"engine\.sync=gloo, and an adapter is trained, which vLLM loads from disk"),
    ],
)
def test_what_cannot_be_sent_is_refused(tmp_path: Path, sync: str, lora: bool, says: str) -> None:
    weights = PolicyFiles(policy(lora=lora), Alone())
    with pytest.raises(ConfigError, match=says):
        vllm(run_seed=0, context_limit=512, weights=weights, sync_dir=tmp_path, rank=0, sync=sync, unused_ids=())


def test_a_worker_of_vllm_inherits_one_name() -> None:
    """vLLM refuses an extension with a name that its own workers have."""
    assert {name for name in vars(WeightReceiver) if not name.startswith("__")} == {"agentgrpo_receive"}
