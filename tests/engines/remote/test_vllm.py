"""The engine over vLLM servers, against a stand-in that can go wrong in every way."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgrpo.config.settings import LoraSettings
from agentgrpo.core.errors import ConfigError, EngineError, NoServer, TrainingError
from agentgrpo.core.types import FinishReason
from agentgrpo.engines.base import Completion, SamplingParams, SeedKey, WeightFiles
from agentgrpo.engines.remote import server as pool_module
from agentgrpo.engines.remote.engine import RemoteEngine
from agentgrpo.engines.remote.server import seed_of
from agentgrpo.engines.remote.vllm import Since, vllm
from agentgrpo.training.adapters import add_adapter
from agentgrpo.training.canary import have_sample, refuse_stale_weights
from agentgrpo.training.policy import Policy
from agentgrpo.training.process_group import Alone
from agentgrpo.training.weight_files import PolicyFiles
from tests.engines import tiny
from tests.engines.remote.stand_in import StandIn, moved
from tests.thorough import siblings

KEY = SeedKey("train/3", "t1", 0, 0)
PROMPT = tiny.prompt(1)
SAMPLING = SamplingParams(max_tokens=8)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(pool_module, "MOST_PAUSE_S", 0.05)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


def policy(*, lora: bool = False) -> Policy:
    """What is trained: other weights than those that the servers are started with."""
    model = tiny.model() if lora else moved(tiny.model())
    if lora:
        add_adapter(model, LoraSettings(rank=4), base="x", seed=0)
        for name, p in model.named_parameters():
            if ".lora_B." in name:
                p.data.normal_(std=0.2)
    return Policy(model=model, tokenizer=tiny.tokenizer())


def engine(servers: Sequence[StandIn], tmp_path: Path, trained: Policy, **settings: Any) -> RemoteEngine:
    injected: dict[str, Any] = {
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
    return vllm(**{**injected, **settings})


@asynccontextmanager
async def serving(
    tmp_path: Path, count: int = 1, *, trained: Policy | None = None, how: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[RemoteEngine, list[StandIn], Policy]]:
    trained = trained or policy()
    async with AsyncExitStack() as stack:
        made = (StandIn(tiny.model(), tiny.tokenizer(), **(how or {})) for _ in range(count))
        servers = [await stack.enter_async_context(server) for server in made]
        found = engine(servers, tmp_path, trained, **settings)
        stack.push_async_callback(found.close)
        yield found, servers, trained


async def scored(trained: Policy, done: Completion, temperature: float = 1.0, *, all_rows: bool = True) -> float:
    """How far the log-probs are from the trainer's."""
    model, n = trained.model, len(PROMPT)
    logits = model(input_ids=torch.tensor([[*PROMPT, *done.token_ids]])).logits[0].double() / temperature
    logits = logits if all_rows else trained.vocabulary.within(logits)
    own = logits.log_softmax(-1)[n - 1 : -1].gather(1, torch.tensor(done.token_ids)[:, None])[:, 0].tolist()
    return max(abs(a - b) for a, b in zip(own, done.logprobs, strict=True))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def canary(found: RemoteEngine, trained: Policy, step: int = 0) -> float:
    return (await refuse_stale_weights(found, trained, PROMPT, step))["policy/canary_gap"]


# --- turns


async def test_a_turn_is_sampled_from_the_weights_that_are_trained_and_its_logprobs_are_the_trainers(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (found, [server], trained):
        await found.load_weights(3)
        assert await canary(found, trained) < 1e-4
        done = await found.generate(PROMPT, SAMPLING, KEY)
        assert await scored(trained, done) < 1e-4
        assert (len(done.token_ids), done.finish_reason, done.policy_version) == (8, FinishReason.LENGTH, 3)
        [body] = [r for r in server.requests if "prompt_logprobs" not in r]
        name = server.weights
        assert body == {
            "model": "base",
            "prompt": list(PROMPT),
            "max_tokens": 8,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "ignore_eos": True,
            "stop": [],
            "stop_token_ids": [],
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "seed": seed_of(7, KEY),
            "logprobs": 0,
            "return_tokens_as_token_ids": True,
            "cache_salt": name,
        }
        assert name.startswith("agentgrpo-v3-")


async def test_what_stops_a_turn_is_part_of_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as (found, _, _):
        await found.load_weights(0)
        free = (await found.generate(PROMPT, SAMPLING, KEY)).token_ids
        stopped = await found.generate(PROMPT, SamplingParams(max_tokens=8, stop_token_ids=(free[3],)), KEY)
        assert (stopped.token_ids, stopped.finish_reason) == (free[: free.index(free[3]) + 1], FinishReason.STOP)
        texts = [tiny.tokenizer().decode([token]) for token in free]
        at = next(i for i, text in enumerate(texts) if text.isascii() and text not in texts[:i])
        stopped = await found.generate(PROMPT, SamplingParams(max_tokens=8, stop=(texts[at],)), KEY)
        assert (stopped.token_ids, stopped.finish_reason) == (free[: at + 1], FinishReason.STOP)


async def test_more_stop_strings_than_a_server_takes_are_refused_with_what_to_do(tmp_path: Path) -> None:
    many = SamplingParams(max_tokens=8, stop=("a1", "b2", "c3", "d4", "e5"))
    async with serving(tmp_path) as (found, [server], _):
        await found.load_weights(0)
        with pytest.raises(ConfigError, match="VLLM_MAX_STOP_STRINGS=10"):
            await found.generate(PROMPT, many, KEY)
        server.max_stops = 10
        assert len((await found.generate(PROMPT, many, KEY)).token_ids) == 8


async def test_a_context_without_room_is_refused_before_a_server_is_asked(tmp_path: Path) -> None:
    async with serving(tmp_path, max_context=20) as (found, [server], _):
        await found.load_weights(0)
        with pytest.raises(EngineError, match="max_context is 20") as caught:
            await found.generate([1] * 20, SAMPLING, KEY)
        assert (caught.value.kind, server.requests) == ("context_overflow", [])
        assert len((await found.generate([1] * 17, SAMPLING, KEY)).token_ids) == 3


async def test_tokens_that_the_model_has_not_are_the_callers_fault(tmp_path: Path) -> None:
    async with serving(tmp_path) as (found, [server], _):
        await found.load_weights(0)
        with pytest.raises(EngineError) as caught:
            await found.generate([99999], SAMPLING, KEY)
        assert (caught.value.kind, found.pool.serving[0].url) == ("http_4xx", server.url)


async def test_the_seed_is_of_the_turn_and_of_nothing_else(tmp_path: Path) -> None:
    async with serving(tmp_path, 2) as (found, _, _):
        await found.load_weights(0)
        one, again, other = [await found.generate(PROMPT, SAMPLING, k) for k in (KEY, KEY, KEY._replace(turn=1))]
        assert one.token_ids == again.token_ids != other.token_ids
        assert seed_of(8, KEY) != seed_of(7, KEY) == seed_of(7, KEY)
        assert 0 <= seed_of(7, KEY) < 2**63


async def test_another_temperature_gives_the_logprobs_of_what_was_drawn_from(tmp_path: Path) -> None:
    async with serving(tmp_path) as (found, [server], trained):
        await found.load_weights(0)
        hot = SamplingParams(max_tokens=8, temperature=0.5)
        done = await asyncio.gather(*(found.generate(PROMPT, hot, KEY._replace(sample_index=i)) for i in range(3)))
        assert [await scored(trained, d, 0.5) < 1e-4 for d in done] == [True] * 3
        assert len([r for r in server.requests if "seed" in r]) == 3 + 2  # looked at once


@pytest.mark.parametrize("sampling", [{"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}])
async def test_a_server_that_gives_raw_logprobs_is_refused_with_what_to_do(
    tmp_path: Path, sampling: dict[str, Any]
) -> None:
    async with serving(tmp_path, how={"logprobs_mode": "raw_logprobs"}) as (found, _, _):
        await found.load_weights(0)
        with pytest.raises(ConfigError, match="--logprobs-mode processed_logprobs"):
            await found.generate(PROMPT, SamplingParams(max_tokens=8, **sampling), KEY)
        for plain in (SAMPLING, SamplingParams(max_tokens=8, temperature=0.0)):
            assert len((await found.generate(PROMPT, plain, KEY)).token_ids) == 8


async def test_a_cancelled_call_is_stopped_on_the_server(tmp_path: Path) -> None:
    async with serving(tmp_path) as (found, [server], _):
        await found.load_weights(0)
        server.pause_s = 60
        call = asyncio.create_task(found.generate(PROMPT, SAMPLING, KEY))
        await until(lambda: bool(server.requests))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: bool(server.aborted))
        assert [s.live for s in found.pool.servers] == [0]


# --- what goes wrong

FAULTS = {
    "500": "http_500",
    "reset": "transport",
    "hang": "timeout",
    "drip": "timeout",
    "garbage": "garbage",
    "no logprobs": "garbage",
    "a token too many": "garbage",
    "short": "garbage",
    "none": "garbage",
    "a log-prob too few": "garbage",
    "a positive log-prob": "garbage",
    "aborted": "garbage",
}


@pytest.mark.parametrize(
    ("fault", "kind"),
    siblings(sorted(FAULTS.items(), key=lambda row: row[0] in ("drip", "hang")), quick=4),
)
async def test_a_fault_is_typed_and_the_next_server_gives_the_turn(tmp_path: Path, fault: str, kind: str) -> None:
    async with serving(tmp_path, 2, timeout_s=0.7 if kind == "timeout" else 30.0, attempts=2) as (
        found,
        servers,
        trained,
    ):
        await found.load_weights(0)
        await canary(found, trained)
        faults = [fault, fault] if fault == "reset" else [fault]  # the first may be a connection that has idled
        servers[0].faults = [*faults]
        done = await found.generate(PROMPT, SAMPLING, KEY)
        assert await scored(trained, done) < 1e-4
        sampled = [{r["seed"] for r in server.requests if "seed" in r} for server in servers]
        assert sampled == [{seed_of(7, KEY)}, {seed_of(7, KEY)}]
        for server in servers:
            server.faults = [*faults]
        with pytest.raises(EngineError) as caught:
            await found.generate(PROMPT, SAMPLING, KEY)
        assert caught.value.kind == kind


async def test_a_server_that_failed_comes_back_when_it_has_passed_the_canary(tmp_path: Path) -> None:
    async with serving(tmp_path) as (found, [server], trained):
        await found.load_weights(0)
        await canary(found, trained)
        server.faults = ["500", "500"]
        asked = len(server.requests)
        done = await found.generate(PROMPT, SAMPLING, KEY)
        assert await scored(trained, done) < 1e-4
        kinds = ["prompt_logprobs" in r for r in server.requests[asked:]]
        assert kinds == [False, True, False, True, False]  # fails, canary, fails, canary, samples


async def test_a_restarted_server_never_samples_from_its_old_weights(tmp_path: Path) -> None:
    async with serving(tmp_path) as (found, [server], trained):
        await found.load_weights(4)
        await canary(found, trained)
        await server.restart()
        server.orders.clear()
        done = await found.generate(PROMPT, SAMPLING, KEY)
        assert await scored(trained, done) < 1e-4
        assert ("/collective_rpc" in dict(server.orders), server.weights[:12]) == (True, "agentgrpo-v4")


async def test_a_restarted_server_gets_the_adapter_again(tmp_path: Path) -> None:
    async with serving(tmp_path, trained=policy(lora=True)) as (found, [server], trained):
        await found.load_weights(4)
        await canary(found, trained)
        await server.restart()
        assert server.names == ["base"]
        done = await found.generate(PROMPT, SAMPLING, KEY)
        assert await scored(trained, done) < 1e-4
        assert [name[:12] for name in server.names] == ["base", "agentgrpo-v4"]


async def test_a_server_that_is_down_is_left_out_until_it_is_there_again(tmp_path: Path) -> None:
    async with serving(tmp_path, 2) as (found, servers, trained):
        await found.load_weights(0)
        await canary(found, trained)
        await servers[0].stop()
        for i in range(4):
            await found.generate(PROMPT, SAMPLING, KEY._replace(sample_index=i))
        assert [s.url for s in found.pool.serving] == [servers[1].url]
        await servers[0].start()
        await until(lambda: len(found.pool.serving) == 2)
        assert servers[0].weights == servers[1].weights != "default"


@pytest.mark.parametrize("attempts", [1, 3])
async def test_without_any_server_a_call_waits_for_so_long_and_then_says_what_to_do(
    tmp_path: Path, attempts: int
) -> None:
    """Also where it has failed on the last one, and so may be tried on no other."""
    async with serving(tmp_path, wait_s=0.2, attempts=attempts) as (found, [server], _):
        await found.load_weights(0)
        await server.stop()
        with pytest.raises(NoServer, match=r"no server for 0\.2 s .*start one of them and resume the run"):
            await found.generate(PROMPT, SAMPLING, KEY)
        with pytest.raises(NoServer, match="no server"):
            await found.load_weights(1)
        await server.start()


# --- weights


async def test_each_version_is_a_folder_of_its_own_and_the_two_newest_stay(tmp_path: Path) -> None:
    async with serving(tmp_path) as (found, [server], _):
        for step in range(4):
            await found.load_weights(step)
        assert sorted(p.name for p in (tmp_path / "sync").iterdir()) == ["000003", "000004"]
        reloads = [b["kwargs"]["weights_path"] for path, b in server.orders if path == "/collective_rpc"]
        assert reloads == [str(tmp_path / "sync" / f"{i:06d}") for i in (1, 2, 3, 4)]


async def test_of_adapters_only_the_newest_stays_loaded(tmp_path: Path) -> None:
    async with serving(tmp_path, trained=policy(lora=True), how={"dev_mode": False}) as (found, [server], trained):
        for step in range(3):
            await found.load_weights(step)
            assert await canary(found, trained, step) < 1e-4
        assert [name[:12] for name in server.names] == ["base", "agentgrpo-v2"]
        assert await scored(trained, await found.generate(PROMPT, SAMPLING, KEY)) < 1e-4


async def test_a_server_that_reloads_nothing_is_never_sampled_from(tmp_path: Path) -> None:
    async with serving(tmp_path, wait_s=0.2) as (found, [server], trained):
        server.is_stale = True
        await found.load_weights(0)
        with pytest.raises(TrainingError, match="stale or damaged weights"):
            await canary(found, trained)
        with pytest.raises(NoServer, match="no server"):
            await found.generate(PROMPT, SAMPLING, KEY)
        assert [r for r in server.requests if "seed" in r] == []
        server.is_stale = False
        await until(lambda: bool(found.pool.serving))
        assert await scored(trained, await found.generate(PROMPT, SAMPLING, KEY)) < 1e-4


async def test_of_two_servers_the_stale_one_is_left_out(tmp_path: Path) -> None:
    async with serving(tmp_path, 2) as (found, servers, trained):
        servers[0].is_stale = True
        await found.load_weights(0)
        assert await canary(found, trained) < 1e-4
        assert [s.url for s in found.pool.serving] == [servers[1].url]


async def test_weights_that_come_during_a_turn_end_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as (found, [server], _):
        await found.load_weights(0)
        server.pause_s = 0.3
        call = asyncio.create_task(found.generate(PROMPT, SAMPLING, KEY))
        await until(lambda: bool(server.requests))
        await found.load_weights(1)
        with pytest.raises(EngineError, match="replaced during generation"):
            await call
        assert [s.url for s in found.pool.serving] == [server.url]


async def test_other_processes_wait_until_the_first_has_told_the_servers(tmp_path: Path) -> None:
    async with serving(tmp_path) as (first, [server], trained):
        second = engine([server], tmp_path, trained, rank=1, weights=Noted(PolicyFiles(trained, Alone())))
        loading = asyncio.create_task(second.load_weights(2))
        await asyncio.sleep(0.05)
        assert not loading.done()
        await first.load_weights(2)
        await loading
        assert [path for path, _ in server.orders].count("/collective_rpc") == 1
        assert await scored(trained, await second.generate(PROMPT, SAMPLING, KEY)) < 1e-4
        await second.close()


class Noted:
    """The WeightFiles of a process that is not the first: nothing is written."""

    def __init__(self, files: WeightFiles) -> None:
        self.is_adapter, self.device, self._files = files.is_adapter, files.device, files

    def write(self, folder: Path) -> str:
        return self._files.write(folder.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("lora", "how", "says"),
    [
        (False, {"dev_mode": False}, "VLLM_SERVER_DEV_MODE=1"),
        (True, {"lora": False}, "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
        (False, {"max_model_len": 100}, "room for 100 tokens, fewer than engine.max_context=512"),
    ],
)
async def test_a_server_that_was_started_otherwise_is_refused_with_what_to_do(
    tmp_path: Path, lora: bool, how: dict[str, Any], says: str
) -> None:
    async with serving(tmp_path, trained=policy(lora=lora), how=how) as (found, _, _):
        with pytest.raises(ConfigError, match=says):
            await found.load_weights(0)


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    trained = policy()
    for settings, says in (
        ({"urls": ()}, "at least one server"),
        ({"urls": ("http://a:1", "http://a:1/v1")}, "each of them once"),
        ({"urls": ("localhost:8000",)}, "http or https URL"),
        ({"attempts": 0}, "attempts=0"),
        ({"max_context": 1}, "max_context=1"),
        ({"wait_s": -1.0}, "wait_s"),
        ({"api_key_env": "AGENTGRPO_NO_SUCH_KEY"}, "AGENTGRPO_NO_SUCH_KEY is not set"),
    ):
        with pytest.raises(ConfigError, match=says):
            engine([], tmp_path, trained, **{"urls": ("http://a:1",), **settings})


async def test_a_model_that_is_not_served_is_refused_with_those_that_are(tmp_path: Path) -> None:
    async with serving(tmp_path, served_model="mine") as (found, _, _):
        with pytest.raises(ConfigError, match=r"engine\.served_model=mine; .* serves base"):
            await found.load_weights(0)


async def test_a_closed_engine_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as (found, _, _):
        await found.load_weights(0)
        await found.close()
        with pytest.raises(EngineError, match="closed"):
            await found.generate(PROMPT, SAMPLING, KEY)


async def test_scores_are_those_of_the_plain_distribution(tmp_path: Path) -> None:
    async with serving(tmp_path) as (found, _, _):
        await found.load_weights(0)
        scores = await found.score(PROMPT)
        assert len(scores) == len(PROMPT) - 1
        assert all(math.isfinite(x) for x in scores)
        assert found.pool.serving


async def test_many_are_told_by_one_answer_but_by_none_that_was_asked_for_before_they_came() -> None:
    asked: list[asyncio.Future[str]] = []

    async def ask() -> str:
        asked.append(asyncio.get_running_loop().create_future())
        return await asked[-1]

    since = Since()
    first = asyncio.create_task(since.ask(ask))
    await until(lambda: len(asked) == 1)
    later = [asyncio.create_task(since.ask(ask)) for _ in range(3)]
    await asyncio.sleep(0)
    asked[0].set_result("old")
    assert await first == "old"
    await until(lambda: len(asked) == 2)
    asked[1].set_result("new")
    assert await asyncio.gather(*later) == ["new"] * 3
    assert len(asked) == 2


async def test_two_policies_take_turns_on_one_server_and_neither_samples_from_the_others_weights(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (one, [server], trained):
        other = Policy(model=tiny.model(), tokenizer=tiny.tokenizer())
        two = engine([server], tmp_path, other)
        await have_sample(one, trained, PROMPT, 0)
        assert await scored(trained, await one.generate(PROMPT, SAMPLING, KEY)) < 1e-4
        await have_sample(two, other, PROMPT, 0)
        assert await scored(other, await two.generate(PROMPT, SAMPLING, KEY)) < 1e-4
        assert await scored(trained, await one.generate(PROMPT, SAMPLING, KEY)) < 1e-4  # which takes its own back
        await two.close()


# --- rows of the output layer that stand for no token


async def check_unused_rows(serving: Callable[..., Any], canary: Callable[..., Any], tmp_path: Path) -> None:
    """A server that is told of the rows without a token never samples one, and its log-probs are among the others."""
    trained = policy()
    unused = trained.vocabulary.unused
    assert unused == tuple(range(259, 320))
    async with serving(tmp_path, trained=trained, unused_ids=unused) as (found, _, _):
        await found.load_weights(0)
        assert await canary(found, trained) < 1e-4
        for i in range(8):
            done = await found.generate(PROMPT, SAMPLING, KEY._replace(sample_index=i))
            assert max(done.token_ids) < 259
            assert await scored(trained, done, all_rows=False) < 1e-4
    async with serving(tmp_path, trained=trained) as (found, _, _):  # a server that is not told samples them
        await found.load_weights(0)
        turns = [await found.generate(PROMPT, SAMPLING, KEY._replace(sample_index=i)) for i in range(8)]
    assert max(max(done.token_ids) for done in turns) >= 259


async def test_rows_without_a_token_are_never_sampled(tmp_path: Path) -> None:
    await check_unused_rows(serving, canary, tmp_path)


async def test_a_server_that_does_not_heed_the_bias_is_left_out(tmp_path: Path) -> None:
    async with serving(tmp_path, unused_ids=tuple(range(320)), wait_s=0.2) as (found, _, _):
        await found.load_weights(0)
        with pytest.raises(EngineError, match="which is no token of the tokenizer's"):
            await found.generate(PROMPT, SAMPLING, KEY)


async def test_raw_logprobs_are_refused_where_rows_are_left_out(tmp_path: Path) -> None:
    trained = policy()
    how = {"logprobs_mode": "raw_logprobs"}
    async with serving(tmp_path, trained=trained, how=how, unused_ids=trained.vocabulary.unused) as (found, _, _):
        await found.load_weights(0)
        with pytest.raises(ConfigError, match=r"without the 61 ids that are no token.*--logprobs-mode processed"):
            await found.generate(PROMPT, SAMPLING, KEY)
