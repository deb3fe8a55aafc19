"""The engine over SGLang servers, against a stand-in: it was never run against a real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError, NoServer, TrainingError
from agentgrpo.core.types import FinishReason
from agentgrpo.engines.base import SamplingParams
from agentgrpo.engines.remote import server as pool_module
from agentgrpo.engines.remote import sglang as sglang_module
from agentgrpo.engines.remote.engine import RemoteEngine
from agentgrpo.engines.remote.server import seed_of
from agentgrpo.engines.remote.sglang import sglang
from agentgrpo.training.canary import refuse_stale_weights
from agentgrpo.training.policy import Policy
from agentgrpo.training.process_group import Alone
from agentgrpo.training.weight_files import PolicyFiles
from tests.engines import tiny
from tests.engines.remote.sglang_stand_in import SGLangStandIn
from tests.engines.remote.test_vllm import KEY, PROMPT, SAMPLING, check_unused_rows, policy, scored


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(pool_module, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(pool_module, "MOST_PAUSE_S", 0.05)
    monkeypatch.setattr(sglang_module, "FLUSH_PAUSE_S", 0.01)
    caplog.set_level("CRITICAL")


def engine(servers: Sequence[SGLangStandIn], tmp_path: Path, trained: Policy, **settings: Any) -> RemoteEngine:
    given: dict[str, Any] = {
        "run_seed": 7,
        "context_limit": 512,
        "weights": PolicyFiles(trained, Alone()),
        "sync_dir": tmp_path / "sync",
        "rank": 0,
        "unused_ids": (),
        "urls": tuple(server.url for server in servers),
        "timeout_s": 30.0,
        "wait_s": 10.0,
    }
    return sglang(**{**given, **settings})


@asynccontextmanager
async def serving(
    tmp_path: Path, count: int = 1, *, trained: Policy | None = None, how: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[RemoteEngine, list[SGLangStandIn], Policy]]:
    trained = trained or policy()
    async with AsyncExitStack() as stack:
        servers = [SGLangStandIn(tiny.model(), tiny.tokenizer(), **(how or {})) for _ in range(count)]
        for server in servers:
            await stack.enter_async_context(server)
        found = engine(servers, tmp_path, trained, **settings)
        stack.push_async_callback(found.close)
        yield found, servers, trained


async def canary(found: RemoteEngine, trained: Policy) -> float:
    return (await refuse_stale_weights(found, trained, PROMPT, 0))["policy/canary_gap"]


async def test_a_turn_is_sampled_from_what_is_trained_and_says_all_that_sglang_asks(tmp_path: Path) -> None:
    async with serving(tmp_path) as (found, [server], trained):
        await found.load_weights(3)
        assert await canary(found, trained) < 1e-4
        done = await found.generate(PROMPT, SAMPLING, KEY)
        assert await scored(trained, done) < 1e-4
        assert (len(done.token_ids), done.finish_reason, done.policy_version) == (8, FinishReason.LENGTH, 3)
        [body] = [r for r in server.requests if r["sampling_params"]["max_new_tokens"]]
        assert body == {
            "input_ids": list(PROMPT),
            "sampling_params": {
                "max_new_tokens": 8,
                "temperature": 1.0,
                "stop": [],
                "stop_token_ids": [],
                "sampling_seed": seed_of(7, KEY),
                "no_stop_trim": True,
                "skip_special_tokens": False,
                "spaces_between_special_tokens": False,
            },
            "return_logprob": True,
        }


async def test_weights_are_loaded_while_nothing_is_sampled(tmp_path: Path) -> None:
    async with serving(tmp_path) as (found, [server], _):
        server.busy = 2
        await found.load_weights(3)
        orders = [(path, body) for path, body in server.orders if path not in ("/v1/models", "/model_info")]
        folder = str(tmp_path / "sync" / "000001")
        reload = {"model_path": folder, "weight_version": server.weights, "flush_cache": True}
        assert orders == [
            ("/pause_generation", {"mode": "abort"}),
            *[("/flush_cache", {})] * 3,
            ("/update_weights_from_disk", reload),
            ("/continue_generation", {}),
        ]
        assert server.weights.startswith("agentgrpo-v3-")


async def test_a_reload_that_fails_leaves_no_server_paused(tmp_path: Path) -> None:
    async with serving(tmp_path, wait_s=0.1) as (found, [server], _):
        server.busy = 10**6
        with pytest.raises(NoServer, match="no server for"):
            await asyncio.wait_for(found.load_weights(0), 60)
        await found.close()
        assert (server.is_paused, server.weights) == (False, "default")


async def test_what_stops_a_turn_is_part_of_it_and_never_a_cut(tmp_path: Path) -> None:
    async with serving(tmp_path) as (found, _, _):
        await found.load_weights(0)
        free = (await found.generate(PROMPT, SAMPLING, KEY)).token_ids
        at = next(i for i in range(1, 8) if free[i] not in free[:i])
        for room in (8, at + 1):
            sampling = SamplingParams(max_tokens=room, stop_token_ids=(free[at],))
            stopped = await found.generate(PROMPT, sampling, KEY)
            assert (stopped.token_ids, stopped.finish_reason) == (free[: at + 1], FinishReason.STOP)
        texts = [tiny.tokenizer().decode([token]) for token in free]
        at = next(i for i, text in enumerate(texts) if text.isascii() and text not in texts[:i])
        for room in (8, at + 1):
            stopped = await found.generate(PROMPT, SamplingParams(max_tokens=room, stop=(texts[at],)), KEY)
            assert (stopped.token_ids, stopped.finish_reason) == (free[: at + 1], FinishReason.STOP)


async def test_another_temperature_gives_the_logprobs_of_what_was_drawn_from(tmp_path: Path) -> None:
    async with serving(tmp_path) as (found, _, trained):
        await found.load_weights(0)
        done = await found.generate(PROMPT, SamplingParams(max_tokens=8, temperature=0.5), KEY)
        assert await scored(trained, done, 0.5) < 1e-4


@pytest.mark.parametrize(
    ("sampling", "mode", "says"),
    [
        ({"temperature": 0.7}, "raw_logprobs", "without SGLANG_RETURN_ORIGINAL_LOGPROB"),
        ({"top_p": 0.9}, "processed_logprobs", "top_p=0.9"),
        ({"top_k": 5}, "processed_logprobs", "top_k=5"),
        ({"min_p": 0.1}, "processed_logprobs", "min_p=0.1"),
    ],
)
async def test_log_probs_of_another_distribution_are_refused(
    tmp_path: Path, sampling: dict[str, Any], mode: str, says: str
) -> None:
    async with serving(tmp_path, how={"logprobs_mode": mode}) as (found, _, _):
        await found.load_weights(0)
        with pytest.raises(ConfigError, match=says):
            await found.generate(PROMPT, SamplingParams(max_tokens=8, **sampling), KEY)
        assert len((await found.generate(PROMPT, SAMPLING, KEY)).token_ids) == 8


@pytest.mark.parametrize("fault", ["500", "no logprobs", "a token too many", "aborted", "stale"])
async def test_after_a_fault_the_next_server_gives_the_turn(tmp_path: Path, fault: str) -> None:
    async with serving(tmp_path, 2, attempts=2) as (found, servers, trained):
        await found.load_weights(0)
        await canary(found, trained)
        servers[0].faults = [fault]
        done = await found.generate(PROMPT, SAMPLING, KEY)
        assert await scored(trained, done) < 1e-4
        seeds = [[s for r in server.requests if (s := r["sampling_params"].get("sampling_seed"))] for server in servers]
        assert seeds == [[seed_of(7, KEY)]] * 2


@pytest.mark.parametrize("lora", [False, True])
async def test_a_restarted_server_never_samples_from_its_old_weights(tmp_path: Path, lora: bool) -> None:
    async with serving(tmp_path, trained=policy(lora=lora)) as (found, [server], trained):
        await found.load_weights(4)
        await canary(found, trained)
        await server.restart()
        assert (server.names, server.weights) == (["base"], "default")
        assert await scored(trained, await found.generate(PROMPT, SAMPLING, KEY)) < 1e-4


async def test_of_adapters_only_the_newest_stays_loaded(tmp_path: Path) -> None:
    async with serving(tmp_path, trained=policy(lora=True)) as (found, [server], trained):
        for step in range(3):
            await found.load_weights(step)
            assert await canary(found, trained) < 1e-4
        assert [name[:12] for name in server.names] == ["base", "agentgrpo-v2"]
        done = await found.generate(PROMPT, SAMPLING, KEY)
        assert await scored(trained, done) < 1e-4
        assert server.requests[-1]["lora_path"] == server.names[1]


async def test_a_server_that_keeps_stale_weights_is_caught_by_the_canary(tmp_path: Path) -> None:
    async with serving(tmp_path, wait_s=0.2) as (found, [server], trained):
        server.is_stale = True
        await found.load_weights(0)
        assert server.weights.startswith("agentgrpo-v0-")  # as it says itself
        with pytest.raises(TrainingError, match="stale or damaged weights"):
            await canary(found, trained)
        with pytest.raises(NoServer, match="no server"):
            await found.generate(PROMPT, SAMPLING, KEY)
        assert [r for r in server.requests if "sampling_seed" in r["sampling_params"]] == []


@pytest.mark.parametrize(
    ("lora", "how", "says"),
    [
        (False, {"dev_mode": False}, "SGLang 0.5.6 or later"),
        (False, {"max_model_len": 100}, "room for 100 tokens, fewer than engine.max_context=512"),
    ],
)
async def test_a_server_that_cannot_serve_is_refused_with_what_to_do(
    tmp_path: Path, lora: bool, how: dict[str, Any], says: str
) -> None:
    async with serving(tmp_path, trained=policy(lora=lora), how=how) as (found, _, _):
        with pytest.raises(ConfigError, match=says):
            await found.load_weights(0)


async def test_a_server_without_adapters_says_how_to_start_it(tmp_path: Path) -> None:
    async with serving(tmp_path, trained=policy(lora=True), how={"lora": False}, wait_s=0.1) as (found, _, _):
        with pytest.raises(NoServer, match="--enable-lora --max-lora-rank"):
            await found.load_weights(0)


# --- rows of the output layer that stand for no token


async def test_rows_without_a_token_are_never_sampled(tmp_path: Path) -> None:
    await check_unused_rows(serving, canary, tmp_path)
