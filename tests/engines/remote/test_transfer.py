"""Weights sent over the network: the sender, what a worker of vLLM inherits, and the engine over both."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from agentgrpo.engines.remote import pool as pool_module
from agentgrpo.engines.remote.transfer import Sending, TransferError, WeightReceiver
from agentgrpo.engines.remote.vllm import vllm
from agentgrpo.errors import ConfigError, NoServer
from agentgrpo.recipes.weight_files import PolicyFiles
from agentgrpo.training.world import Alone
from tests.engines.remote.stand_in import Worker, moved
from tests.engines.remote.test_vllm import KEY, PROMPT, SAMPLING, canary, policy, scored, serving

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


def sending(folder: Path, receivers: int = 1, timeout_s: float = 20.0) -> Sending:
    return Sending(folder, server_host="127.0.0.1", receivers=receivers, backend="gloo", timeout_s=timeout_s)


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
    def reload_weights(self, *, weights_iterator: Iterable[tuple[str, Tensor]]) -> None:
        next(iter(weights_iterator))
        raise ValueError("size mismatch")


def test_a_worker_that_fails_in_the_middle_ends_the_transfer_at_once(folder: Path, threads: ThreadPoolExecutor) -> None:
    more_than_waits_on_the_way = {f"wide{i}": torch.zeros(4000, 2000) for i in range(4)}
    save_file(more_than_waits_on_the_way, folder / "model-0.safetensors")
    sent = sending(folder)
    worker, sender = threads.submit(Failing().agentgrpo_receive, **sent.call), threads.submit(sent.run)
    assert str(failure(worker, 10)) == "size mismatch"
    assert isinstance(failure(sender, 10), TransferError)


def test_a_sender_that_is_lost_in_the_middle_ends_the_worker_at_once(folder: Path, threads: ThreadPoolExecutor) -> None:
    code = (
        "import json, os, sys\n"
        "from pathlib import Path\n"
        "from agentgrpo.engines.remote.transfer import Sending, _Group\n"
        "sent = Sending(Path(sys.argv[1]), server_host='127.0.0.1', receivers=1, backend='gloo', timeout_s=30)\n"
        "print(json.dumps(sent.call), flush=True)\n"
        "_Group.broadcast = lambda group, tensor: os._exit(9)\n"
        "sent.run()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = threads.submit(Worker().agentgrpo_receive, **json.loads(process.stdout.readline()))
        assert isinstance(failure(worker, 20), RuntimeError)
        assert process.wait(10) == 9


def test_a_transfer_that_is_given_up_ends_its_thread(folder: Path, threads: ThreadPoolExecutor) -> None:
    sent = sending(folder)
    found = threads.submit(sent.run)
    time.sleep(0.1)
    assert not found.done()
    sent.give_up()
    assert isinstance(failure(found, 2), TransferError)


def test_workers_that_never_call_are_counted(folder: Path) -> None:
    with pytest.raises(TransferError, match="0 of 2 workers"):
        sending(folder, receivers=2, timeout_s=0.2).run()


def test_what_runs_in_the_server_needs_torch_and_safetensors_alone() -> None:
    code = (
        "import sys; import agentgrpo.engines.remote.transfer\n"
        "ours = {m for m in sys.modules if m.startswith('agentgrpo')}\n"
        "assert ours == {'agentgrpo', 'agentgrpo.engines', 'agentgrpo.engines.remote',"
        " 'agentgrpo.engines.remote.transfer'}, ours\n"
        "assert not {'hydra', 'omegaconf', 'httpx', 'transformers', 'rich'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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


async def test_a_server_whose_workers_do_not_all_call_is_left_out(tmp_path: Path) -> None:
    async with serving(tmp_path, 2, sync="gloo", sync_timeout_s=1.0) as (found, servers, trained):
        servers[0].workers, servers[0].lost_workers = 2, 1
        began = time.monotonic()
        await found.load_weights(0)
        assert time.monotonic() - began < 10
        assert [s.url for s in found.pool.serving] == [servers[1].url]
        assert await canary(found, trained) < 1e-4


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
        ("nccl", False, r"engine\.sync=nccl, and this process has no CUDA device; engine\.sync=gloo needs none"),
        ("gloo", True, r"engine\.sync=gloo, and an adapter is trained, which vLLM loads from disk"),
    ],
)
def test_what_cannot_be_sent_is_refused(
    tmp_path: Path, sync: str, lora: bool, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    weights = PolicyFiles(policy(lora=lora), Alone())
    with pytest.raises(ConfigError, match=says):
        vllm(run_seed=0, context_limit=512, weights=weights, sync_dir=tmp_path, rank=0, sync=sync)


def test_a_worker_of_vllm_inherits_one_name() -> None:
    """vLLM refuses an extension with a name that its own workers have."""
    assert {name for name in vars(WeightReceiver) if not name.startswith("__")} == {"agentgrpo_receive"}
