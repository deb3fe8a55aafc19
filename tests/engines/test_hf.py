"""The in-process engine against the model's own forward pass, and what it promises about slots, errors and stops."""

from __future__ import annotations

import asyncio
import weakref

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentgrpo.core.errors import ConfigError, EngineError
from agentgrpo.core.types import FinishReason
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.cache import CacheShape, KVCache
from tests.engines.tiny import EOS, bits, encode, engine, model, plain_logprobs, play, play_all, prompt, tokenizer

EPISODES = [(task, sample) for task in range(3) for sample in range(3)]
KEY = SeedKey("train/0", "task", 0, 0)


def force(policy, token):
    """Make `token` the next one after any context: its embedding is the only output direction that counts."""
    with torch.no_grad():
        policy.lm_head.weight = torch.nn.Parameter(torch.zeros_like(policy.lm_head.weight))
        policy.lm_head.bias = torch.nn.Parameter(torch.zeros(policy.config.vocab_size))
        policy.lm_head.bias[token] = 100.0


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("deterministic", [True, False])
async def test_logprobs_are_those_of_a_plain_forward_pass(family, deterministic):
    policy = model(family)
    backend = engine(policy, deterministic=deterministic)
    played = await asyncio.gather(*(play(backend, *e) for e in EPISODES))
    for tokens, completions in played:
        plain = plain_logprobs(policy, tokens)
        position, found, expected = 0, [], []
        for c in completions:
            position = next(
                i for i in range(position, len(tokens)) if tuple(tokens[i : i + len(c.token_ids)]) == c.token_ids
            )
            found += c.logprobs
            expected += plain[position - 1 : position - 1 + len(c.token_ids)]
        assert len(found) >= 3
        assert found == pytest.approx(expected, abs=1e-5)
    assert len({c.token_ids for _, cs in played for c in cs}) > 20  # they really differ


async def test_greedy_is_what_the_model_generates():
    policy = model("qwen2")
    backend = engine(policy)
    context = prompt(1)
    expected = policy.generate(
        torch.tensor([context]),
        attention_mask=torch.ones(1, len(context)),
        max_new_tokens=20,
        do_sample=False,
        pad_token_id=0,
        suppress_tokens=list(range(len(tokenizer()), policy.config.vocab_size)),
    )
    found = await backend.generate(context, SamplingParams(max_tokens=20, temperature=0.0), KEY)
    assert list(found.token_ids) == expected[0, len(context) :].tolist()
    plain = plain_logprobs(policy, [*context, *found.token_ids])[-20:]
    assert found.logprobs == pytest.approx(plain, abs=1e-5)
    assert (found.finish_reason, found.policy_version) == (FinishReason.LENGTH, 0)


async def test_filters_and_temperatures_mix_in_one_batch():
    backend = engine()
    modes = [
        SamplingParams(max_tokens=6, temperature=t, top_k=k, top_p=p)
        for t, k, p in ((1.0, 0, 1.0), (0.0, 0, 1.0), (0.7, 5, 0.9))
    ]
    keys = [SeedKey("s", str(i), 0, 0) for i in range(3)]
    alone = []
    for mode, key in zip(modes, keys, strict=True):
        alone.append(await backend.generate(prompt(0), mode, key))
        backend.release(key)
    together = await asyncio.gather(
        *(backend.generate(prompt(0), mode, key) for mode, key in zip(modes, keys, strict=True))
    )
    assert [(c.token_ids, c.logprobs) for c in together] == [(c.token_ids, c.logprobs) for c in alone]
    assert max(together[2].logprobs) > max(together[0].logprobs)


async def test_score_is_the_models_own_forward_and_leaves_the_engine_alone():
    policy = model("llama").train()
    backend = engine(policy)
    tokens, _ = await play(backend, 1, 0)
    assert await backend.score(tokens) == pytest.approx(plain_logprobs(policy, tokens, all_rows=True), abs=1e-6)
    assert await backend.score([3]) == []
    assert policy.training


# -- weights


async def test_new_weights_drop_everything_computed_with_older_ones():
    policy, other = model(seed=0), model(seed=1)
    backend, fresh = engine(policy), engine(other)
    sampling = SamplingParams(max_tokens=8)
    context = prompt(2)
    await backend.generate(context, sampling, KEY)
    policy.load_state_dict(other.state_dict())
    stale = await backend.generate(context, sampling, KEY._replace(sample_index=1))
    await backend.load_weights(5)
    renewed = await backend.generate(context, sampling, KEY._replace(sample_index=1))
    expected = await fresh.generate(context, sampling, KEY._replace(sample_index=1))
    assert (renewed.token_ids, renewed.logprobs, renewed.policy_version) == (expected.token_ids, expected.logprobs, 5)
    assert stale.logprobs != expected.logprobs  # so a forgotten prompt would show


async def test_an_episode_goes_on_after_new_weights_with_nothing_stale():
    policy, other = model(seed=0), model(seed=1)
    backend = engine(policy)
    sampling = SamplingParams(max_tokens=8)
    first = await backend.generate(prompt(2), sampling, KEY)
    context = [*prompt(2), *first.token_ids, 1, 2, 3]
    policy.load_state_dict(other.state_dict())
    await backend.load_weights(1)
    second = await backend.generate(context, sampling, KEY._replace(turn=1))
    expected = plain_logprobs(other, [*context, *second.token_ids])[-len(second.token_ids) :]
    assert second.logprobs == pytest.approx(expected, abs=1e-5)


async def test_new_weights_end_what_is_generating():
    backend = engine()
    waiting = asyncio.create_task(backend.generate(prompt(0), SamplingParams(max_tokens=400), KEY))
    await asyncio.sleep(0.01)
    await backend.load_weights(1)
    with pytest.raises(EngineError, match="weights were replaced"):
        await waiting


async def test_logits_that_are_not_finite_fail_their_episode_and_leave_no_trace():
    policy = model()
    backend = engine(policy, slots=1)
    expected = bits(await play_all(backend, [(1, 0)]))
    good = policy.state_dict()["model.layers.1.mlp.down_proj.weight"].clone()
    policy.state_dict()["model.layers.0.self_attn.v_proj.weight"][:] *= float("nan")
    with pytest.raises(EngineError, match="not finite") as failure:
        await backend.generate(prompt(2), SamplingParams(), KEY)
    assert failure.value.kind == "non_finite"
    policy.load_state_dict(model().state_dict())
    assert torch.equal(policy.state_dict()["model.layers.1.mlp.down_proj.weight"], good)
    assert bits(await play_all(backend, [(1, 0)])) == expected


# -- stops and limits


async def test_the_stop_token_is_kept_and_ends_the_turn():
    policy = model("qwen2")
    force(policy, EOS)
    completion = await engine(policy).generate([1, 2], SamplingParams(stop_token_ids=(EOS,)), KEY)
    assert (completion.token_ids, completion.finish_reason) == ((EOS,), FinishReason.STOP)
    assert completion.logprobs == pytest.approx([0.0], abs=1e-9)


async def test_a_stop_string_over_several_tokens_ends_the_turn_with_the_token_that_completes_it():
    policy = model("qwen2")
    force(policy, encode("a")[0])
    sampling = SamplingParams(max_tokens=9, stop=("never", "aaa"))
    completion = await engine(policy).generate(encode("aaaa"), sampling, KEY)
    assert (list(completion.token_ids), completion.finish_reason) == (encode("aaa"), FinishReason.STOP)


@pytest.mark.parametrize(("max_tokens", "context", "sampled"), [(1, 5, 1), (7, 5, 7), (99, 27, 5), (99, 31, 1)])
async def test_max_tokens_and_max_context(max_tokens, context, sampled):
    backend = engine(max_context=32)
    completion = await backend.generate([1] * context, SamplingParams(max_tokens=max_tokens), KEY)
    assert (len(completion.token_ids), completion.finish_reason) == (sampled, FinishReason.LENGTH)
    assert len(completion.logprobs) == sampled


async def test_a_context_without_room_is_refused():
    backend = engine(max_context=32)
    with pytest.raises(EngineError, match="32 tokens was given, max_context is 32") as failure:
        await backend.generate([1] * 32, SamplingParams(), KEY)
    assert failure.value.kind == "context_overflow"


@pytest.mark.parametrize("tokens", [[], [-1], [320]])
async def test_tokens_outside_the_vocabulary_are_refused(tokens):
    with pytest.raises(EngineError, match="from 0 to 319") as failure:
        await engine().generate(tokens, SamplingParams(), KEY)
    assert failure.value.kind == "bad_tokens"


# -- slots, cancellation, errors, loops


@pytest.mark.timeout(30)
@pytest.mark.parametrize("slots", [1, 2, 5])
async def test_more_episodes_than_slots(slots):
    backend = engine(slots=slots)
    assert bits(await play_all(backend, EPISODES)) == bits(await play_all(engine(), EPISODES))
    assert backend._schedule.num_contexts == 0


async def test_an_idle_episode_gives_its_slot_to_one_that_waits_and_goes_on_as_if_it_had_not():
    backend, undisturbed = engine(slots=1), engine()
    sampling = SamplingParams(max_tokens=12)
    first = await backend.generate(prompt(2), sampling, KEY)
    other = await backend.generate(prompt(1), sampling, KEY._replace(task_id="other"))
    assert backend.stats.evictions == 1
    assert other.time_queue > 0
    assert 0 < other.time_generate < 5
    context = [*prompt(2), *first.token_ids, 1, 2, 3]
    second = await backend.generate(context, sampling, KEY._replace(turn=1))
    assert backend.stats.replayed_tokens == len(prompt(2)) + 11
    await undisturbed.generate(prompt(2), sampling, KEY)
    expected = await undisturbed.generate(context, sampling, KEY._replace(turn=1))
    assert (second.token_ids, second.logprobs) == (expected.token_ids, expected.logprobs)


async def test_what_is_counted():
    backend = engine(slots=8)
    await asyncio.gather(*(play(backend, 1, i, turns=1, sampling=SamplingParams(max_tokens=5)) for i in range(3)))
    stats = backend.stats
    assert (stats.prefill_tokens, stats.copied_tokens, stats.replayed_tokens) == (15, 30, 0)
    assert (stats.decode_tokens, stats.steps, stats.evictions, stats.peak_kv_tokens) == (15, 6, 0, 3 * 64)


async def test_memory_follows_each_episodes_own_length_and_goes_back_at_release():
    backend = engine()
    sampling = SamplingParams(max_tokens=1)
    for i, length in enumerate((30, 300)):
        await backend.generate([1] * length, sampling, KEY._replace(sample_index=i))
    contexts = backend._schedule._memory.contexts
    caches = [weakref.ref(c.held.kv) for c in sorted(contexts, key=lambda c: c.age)]
    assert [c().shape[3] for c in caches] == [64, 320]
    backend.release(KEY._replace(sample_index=1))
    assert [c() is None for c in caches] == [False, True]
    backend.release(KEY)
    assert [c() is None for c in caches] == [True, True]


def poison_new_memory(monkeypatch):
    reserve = KVCache.reserve

    def poisoned(self: KVCache, shape: CacheShape, tokens: int) -> None:
        before = self.capacity
        reserve(self, shape, tokens)
        self.kv[:, :, :, before:] = torch.nan

    monkeypatch.setattr(KVCache, "reserve", poisoned)


async def test_what_was_never_written_is_never_read(monkeypatch):
    expected = bits(await play_all(engine(), EPISODES))
    poison_new_memory(monkeypatch)
    assert bits(await play_all(engine(), EPISODES)) == expected


async def test_in_bfloat16_the_logprobs_are_near_and_do_not_depend_on_company():
    policy = model("qwen2").bfloat16()
    together = await asyncio.gather(*(play(engine(policy), *e) for e in EPISODES[:4]))
    tokens, completions = await play(engine(policy), *EPISODES[1])
    assert bits({EPISODES[1]: completions}) == bits({EPISODES[1]: together[1][1]})
    plain = plain_logprobs(policy, tokens)[-len(completions[-1].token_ids) :]
    assert completions[-1].logprobs == pytest.approx(plain, abs=0.1)


async def test_decoding_goes_on_while_a_long_prompt_is_computed():
    backend = engine(prefill_chunk=32, prefill_budget=64)
    long = asyncio.create_task(backend.generate([1] * 400, SamplingParams(max_tokens=1), KEY))
    await asyncio.sleep(0)
    short = await backend.generate([2, 3], SamplingParams(max_tokens=5), KEY._replace(task_id="short"))
    assert len(short.token_ids) == 5
    assert not long.done()
    assert (await long).token_ids
    assert backend.stats.steps == 7


async def test_a_cancelled_turn_stops_at_once_and_can_be_tried_again():
    backend = engine(slots=1)
    sampling = SamplingParams(max_tokens=300)
    expected = await backend.generate(prompt(0), SamplingParams(max_tokens=6), KEY)
    backend.release(KEY)
    running = asyncio.create_task(backend.generate(prompt(0), sampling, KEY))
    waiting = asyncio.create_task(backend.generate(prompt(0), sampling, KEY._replace(sample_index=1)))
    await asyncio.sleep(0.02)
    for task in (running, waiting):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert backend._schedule.turns == []
    again = await backend.generate(prompt(0), SamplingParams(max_tokens=6), KEY)
    assert (again.token_ids, again.logprobs) == (expected.token_ids, expected.logprobs)
    backend.release(KEY)
    assert backend._schedule.num_contexts == 0


async def test_an_error_in_a_step_reaches_every_turn_and_the_engine_goes_on(monkeypatch):
    policy = model()
    backend = engine(policy)
    expected = bits(await play_all(backend, EPISODES))
    forward, calls = policy.model.layers[1].mlp.forward, []

    def failing(x):
        calls.append(len(x))
        if len(calls) == 5:
            raise RuntimeError("out of memory")
        return forward(x)

    monkeypatch.setattr(policy.model.layers[1].mlp, "forward", failing)
    outcomes = await asyncio.gather(*(play(backend, *e) for e in EPISODES), return_exceptions=True)
    assert {str(o) for o in outcomes} == {"engine step: RuntimeError: out of memory (test_hf.py:305 in failing)"}
    assert {type(o) for o in outcomes} == {EngineError}
    assert bits(await play_all(backend, EPISODES)) == expected


async def test_after_a_step_that_failed_nothing_is_taken_for_computed_that_was_not(monkeypatch):
    backend, undisturbed = engine(), engine()
    sampling, other = SamplingParams(max_tokens=5), KEY._replace(sample_index=1)
    for each in (backend, undisturbed):
        for key in (KEY, other):
            first = await each.generate(prompt(2), sampling, key)
    context = [*prompt(2), *first.token_ids, 1, 2, 3]
    backend._schedule.evict(backend._schedule._contexts[other.episode])
    poison_new_memory(monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(KVCache, "copy_prefix", lambda *_: 1 / 0)
        with pytest.raises(EngineError, match="engine step: ZeroDivisionError"):
            await backend.generate(context, sampling, other._replace(turn=1))
    found = await backend.generate(context, sampling, other._replace(turn=1))
    expected = await undisturbed.generate(context, sampling, other._replace(turn=1))
    assert (found.token_ids, found.logprobs) == (expected.token_ids, expected.logprobs)


async def test_release_ends_what_the_episode_generates():
    backend = engine()
    running = asyncio.create_task(backend.generate(prompt(0), SamplingParams(max_tokens=300), KEY))
    await asyncio.sleep(0.01)
    backend.release(KEY)
    with pytest.raises(EngineError, match="was released"):
        await running


async def test_a_closed_engine_says_so():
    backend = engine()
    running = asyncio.create_task(backend.generate(prompt(0), SamplingParams(max_tokens=300), KEY))
    await asyncio.sleep(0.01)
    await backend.close()
    with pytest.raises(EngineError, match="was closed"):
        await running
    with pytest.raises(EngineError, match="is closed"):
        await backend.generate(prompt(0), SamplingParams(), KEY)


def test_one_engine_serves_one_event_loop_after_another():
    backend = engine()

    async def abandoned() -> None:
        task = asyncio.create_task(backend.generate(prompt(0), SamplingParams(max_tokens=300), KEY))
        await asyncio.sleep(0.01)
        assert not task.done()

    first = bits(asyncio.run(play_all(backend, EPISODES)))
    asyncio.run(abandoned())
    backend.release(KEY)
    assert bits(asyncio.run(play_all(backend, EPISODES))) == first


# -- the live policy is left as it was


async def test_the_policy_is_found_as_it_was_left():
    policy = model()
    policy.train()
    policy.model.layers[0].eval()  # frozen by its trainer
    modes = [m.training for m in policy.modules()]
    ids = torch.tensor([prompt(2)])
    before = policy(input_ids=ids, labels=ids).loss
    backend = engine(policy)
    rolling = asyncio.create_task(play_all(backend, EPISODES))
    while not rolling.done():  # between two steps as well as afterwards
        assert policy.config._attn_implementation == "sdpa"
        assert [m.training for m in policy.modules()] == modes
        await asyncio.sleep(0)
    loss = policy(input_ids=ids, labels=ids).loss
    assert torch.equal(loss, before)
    loss.backward()
    assert policy.model.embed_tokens.weight.grad.abs().sum() > 0


async def test_dropout_is_off_while_sampling():
    policy = model("qwen2")
    policy.config.attention_dropout = 0.9
    for layer in policy.model.layers:
        layer.self_attn.attention_dropout = 0.9
        layer.mlp.register_forward_hook(lambda module, _, out: out * 0 if module.training else out)
    expected = bits(await play_all(engine(model("qwen2")), EPISODES))
    assert bits(await play_all(engine(policy.train()), EPISODES)) == expected


async def test_cache_attention_outside_of_a_step_says_so():
    policy = model()
    engine(policy)
    policy.config._attn_implementation = "agentgrpo_caches"
    with pytest.raises(EngineError, match="outside of an engine step"):
        policy(input_ids=torch.tensor([[1, 2]]))


# -- settings


@pytest.mark.parametrize("name", ["slots", "prefill_budget", "prefill_chunk"])
def test_nothing_can_be_done_with_nothing(name):
    with pytest.raises(ConfigError, match=f"engine: {name}=0 was given; it must be at least 1"):
        engine(**{name: 0})


@pytest.mark.parametrize("max_context", [1, 513])
def test_contexts_that_the_model_does_not_have(max_context):
    with pytest.raises(ConfigError, match=f"max_context={max_context} was given; it must be between 2 and .* own 512"):
        engine(max_context=max_context)


def test_a_kv_budget_below_one_episode_is_refused():
    engine(max_context=300, kv_budget=320)
    with pytest.raises(ConfigError, match="kv_budget=319 was given; one episode of max_context=300 tokens needs 320"):
        engine(max_context=300, kv_budget=319)


def test_sliding_window_models_are_refused():
    config = Qwen2Config(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=1,
    )
    with pytest.raises(
        ConfigError, match=r"looks back 8 tokens in some layers, and max_context=9; .* engine\.max_context=8, or"
    ):
        engine(Qwen2ForCausalLM(config), max_context=9)


def test_a_window_that_no_context_is_longer_than_is_full_attention():
    torch.manual_seed(0)
    shape = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.15}
    plain = Qwen2ForCausalLM(Qwen2Config(**shape)).eval()
    windowed = Qwen2ForCausalLM(Qwen2Config(**shape, use_sliding_window=True, sliding_window=48, max_window_layers=1))
    windowed.load_state_dict(plain.state_dict())
    played = [asyncio.run(play(engine(m.eval(), max_context=48), 1, 0, turns=2))[0] for m in (plain, windowed)]
    assert played[0] == played[1]
