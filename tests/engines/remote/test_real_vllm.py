"""The engine over a real vLLM: weights, log-probs, loss of the server. make test-vllm."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from agentgrpo.config.settings import LoraSettings
from agentgrpo.core.errors import TrainingError
from agentgrpo.core.types import FinishReason, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.engines.remote.engine import RemoteEngine
from agentgrpo.engines.remote.transfer import WeightReceiver, _Group
from agentgrpo.engines.remote.vllm import vllm
from agentgrpo.training.adapters import add_adapter
from agentgrpo.training.canary import refuse_stale_weights
from agentgrpo.training.policy import Policy
from agentgrpo.training.process_group import Alone
from agentgrpo.training.weight_files import PolicyFiles
from tests.engines import tiny
from tests.engines.remote.real import VLLM, RealServer
from tests.engines.remote.stand_in import moved
from tests.engines.remote.test_training import ServedRun, refuse_stale_steps
from tests.engines.remote.test_vllm import KEY, PROMPT, scored

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not VLLM.is_file(), reason="make test-vllm installs vLLM"),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that the server is started with: one with tied embeddings."""
    folder = tmp_path_factory.mktemp("vllm") / "model"
    Policy(model=tiny.model(), tokenizer=tiny.tokenizer()).save(folder)
    return folder


@pytest.fixture(scope="module")
def server(base: Path) -> Iterator[RealServer]:
    receiver = f"{WeightReceiver.__module__}.{WeightReceiver.__qualname__}"
    options = ("--enable-lora", "--max-lora-rank", "16", "--worker-extension-cls", receiver)
    real = RealServer(base, base.with_name("log"), *options)
    real.start()
    try:
        real.wait()
        yield real
    finally:
        real.kill()


@pytest.fixture(autouse=True)
def qwen3(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The runs' model is of the family that the server was started with."""
    made = tiny.model
    monkeypatch.setattr(tiny, "model", lambda family="qwen3", **options: made("qwen3", **options))
    caplog.set_level("CRITICAL")


def engine(
    server: RealServer, tmp_path: Path, trained: Policy, files: PolicyFiles | None = None, sync: str = "disk"
) -> RemoteEngine:
    return vllm(
        run_seed=7,
        context_limit=512,
        weights=files or PolicyFiles(trained, Alone()),
        sync_dir=tmp_path / "sync",
        rank=0,
        urls=(server.url,),
        wait_s=60.0,
        sync=sync,
    )


async def gap(found: RemoteEngine, trained: Policy) -> float:
    return (await refuse_stale_weights(found, trained, PROMPT, 0))["policy/canary_gap"]


@pytest.mark.parametrize("sync", ["disk", "gloo"])
async def test_whole_models_are_exact_after_every_sync_and_so_is_what_is_sampled(
    server: RealServer, tmp_path: Path, sync: str
) -> None:
    trained = Policy(model=tiny.model(), tokenizer=tiny.tokenizer())
    found = engine(server, tmp_path, trained, sync=sync)
    for step in range(3):
        trained.model.load_state_dict(moved(trained.model).state_dict())
        await found.load_weights(step)
        assert await gap(found, trained) < 1e-4
    for temperature in (1.0, 0.5, 2.0):
        sampling = SamplingParams(max_tokens=24, temperature=temperature)
        keys = [KEY._replace(sample_index=i) for i in range(4)]
        done = await asyncio.gather(*(found.generate(PROMPT, sampling, key) for key in keys))
        assert max([await scored(trained, d, temperature) for d in done]) < 1e-4
        assert (await found.generate(PROMPT, sampling, KEY)).token_ids == done[0].token_ids
    await found.close()


class AsTransformersWritesIt(PolicyFiles):
    """Tied embeddings as one."""

    def write(self, folder: Path) -> str:
        self._policy.save(folder)
        return sha256(str(folder).encode()).hexdigest()


async def test_a_reload_that_leaves_the_output_layer_stale_is_caught(server: RealServer, tmp_path: Path) -> None:
    trained = Policy(model=moved(tiny.model(), 0.1), tokenizer=tiny.tokenizer())
    found = engine(server, tmp_path, trained, AsTransformersWritesIt(trained, Alone()))
    await found.load_weights(0)
    with pytest.raises(TrainingError, match="stale or damaged weights"):
        await gap(found, trained)
    await found.close()
    found = engine(server, tmp_path, trained)
    await found.load_weights(0)
    assert await gap(found, trained) < 1e-4
    await found.close()


async def test_adapters_are_exact_under_a_new_name_for_each_version(server: RealServer, tmp_path: Path) -> None:
    back = engine(server, tmp_path, Policy(model=tiny.model(), tokenizer=tiny.tokenizer()))
    await back.load_weights(0)  # the base that the adapter is trained on
    await back.close()
    trained = Policy(model=tiny.model(), tokenizer=tiny.tokenizer())
    add_adapter(trained.model, LoraSettings(rank=8), base="x", seed=0)
    found = engine(server, tmp_path / "lora", trained)
    for step in range(3):
        for p in trained.model.parameters():
            if p.requires_grad:
                p.data.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(step)))
        await found.load_weights(step)
        assert await gap(found, trained) < 1e-4
    assert await scored(trained, await found.generate(PROMPT, SamplingParams(max_tokens=24), KEY)) < 1e-4
    await found.close()


async def test_what_stops_a_turn_is_part_of_it(server: RealServer, tmp_path: Path) -> None:
    trained = Policy(model=tiny.model(), tokenizer=tiny.tokenizer())
    found = engine(server, tmp_path, trained)
    await found.load_weights(0)
    free = (await found.generate(PROMPT, SamplingParams(max_tokens=24), KEY)).token_ids
    texts = [tiny.tokenizer().decode([token]) for token in free]
    at = next(i for i, text in enumerate(texts) if i and text.isascii() and text not in texts[:i])
    for stop in ({"stop": (texts[at], *"qwertz")}, {"stop_token_ids": (free[at],)}):
        done = await found.generate(PROMPT, SamplingParams(max_tokens=24, **stop), KEY)  # type: ignore[arg-type]
        assert done.finish_reason is FinishReason.STOP
        assert done.token_ids == free[: len(done.token_ids)]
        assert len(done.token_ids) <= at + 1
    await found.close()


async def test_weights_that_stop_coming_leave_the_server_out_until_they_are_sent_whole(
    server: RealServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender is lost when half of the tensors are there."""
    trained = Policy(model=moved(tiny.model(), 0.1), tokenizer=tiny.tokenizer())
    found = engine(server, tmp_path, trained, sync="gloo")
    whole, sent = _Group.broadcast, 0

    def breaks_once(group: _Group, tensor: torch.Tensor) -> None:
        nonlocal sent
        sent += 1
        if sent == 10:
            raise RuntimeError("the cable was pulled")
        whole(group, tensor)

    monkeypatch.setattr(_Group, "broadcast", breaks_once)
    await found.load_weights(0)
    assert sent > 20
    assert await gap(found, trained) < 1e-4
    await found.close()


@pytest.mark.parametrize("sync", ["disk", "gloo"])
async def test_a_run_trains_resumes_and_outlives_the_death_of_its_server(
    server: RealServer, tmp_path: Path, sync: str
) -> None:
    run = ServedRun(run_dir=tmp_path / "run", servers=(server,), run={"max_steps": 2}, sync=sync)
    await run.go()
    killed: list[str] = []

    async def dies(stream: str, task: Task, sample_index: int) -> None:
        if stream == "train/3" and not killed:
            killed.append(stream)
            await server.restart()

    await replace(run, run={"max_steps": 5}, before=dies, wait_s=600.0).go()
    assert killed
    refuse_stale_steps(run, 5)
