"""The policy: made, saved, loaded, scored; models it would score wrongly are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    PreTrainedModel,
)

from agentgrpo.core.errors import ConfigError
from agentgrpo.training import attention
from agentgrpo.training.policy import Policy, init_policy, load_policy
from tests.grpo.tiny import (
    VOCABULARY,
    exact_model,
    plain_logprobs,
    random_samples,
    tiny_model,
    tiny_tokenizer,
    training_sample,
)

IDS = torch.tensor([[2, 3, 4, 5]])


def new_policy(seed: int = 0) -> Policy:
    return init_policy(
        tokenizer=tiny_tokenizer(),
        hidden_size=32,
        num_layers=2,
        intermediate_size=48,
        num_heads=4,
        num_kv_heads=2,
        seed=seed,
        max_positions=64,
    )


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in policy.model.named_parameters()}


def test_a_new_policy_is_a_standard_model_of_the_sizes_asked_for() -> None:
    policy = new_policy()
    config = policy.model.config
    assert config.model_type == "qwen3"
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (VOCABULARY, 32, 2)
    assert (config.intermediate_size, config.num_attention_heads, config.num_key_value_heads) == (48, 4, 2)
    assert (config.head_dim, config.max_position_embeddings, config.eos_token_id, config.pad_token_id) == (8, 64, 1, 0)
    assert policy.model.lm_head.weight is policy.model.model.embed_tokens.weight
    assert not policy.model.training


def test_a_new_policy_is_a_function_of_its_seed_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = weights(new_policy(seed=1))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    torch.testing.assert_close(weights(new_policy(seed=1)), first, rtol=0, atol=0)
    other = weights(new_policy(seed=2))
    assert not torch.equal(other["model.embed_tokens.weight"], first["model.embed_tokens.weight"])


@pytest.mark.parametrize("sizes", [{"hidden_size": 36, "num_heads": 8}, {"num_heads": 4, "num_kv_heads": 3}])
def test_sizes_that_do_not_divide_are_refused(sizes: dict) -> None:
    with pytest.raises(ConfigError, match="hidden_size must be a multiple"):
        init_policy(tokenizer=tiny_tokenizer(), **sizes)


def test_a_saved_policy_is_a_plain_transformers_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    policy = new_policy()
    policy.save(folder)
    assert (folder / "model.safetensors").exists()
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(model(IDS).logits, policy.model(IDS).logits)
    assert model.generate(IDS, max_new_tokens=3, do_sample=False).shape[1] > 4
    assert AutoTokenizer.from_pretrained(folder)("w5 w6")["input_ids"] == [5, 6]
    loaded = load_policy(folder)
    torch.testing.assert_close(weights(loaded), weights(policy), rtol=0, atol=0)
    assert load_policy(folder, dtype="bfloat16").model.dtype == torch.bfloat16


def test_a_folder_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    new_policy().save(tmp_path / "whole")
    (tmp_path / "empty").mkdir()
    truncated, partial, no_tokenizer = (tmp_path / n for n in ("truncated", "partial", "no_tokenizer"))
    for folder in (truncated, partial, no_tokenizer):
        new_policy().save(folder)
    (truncated / "model.safetensors").write_bytes((truncated / "model.safetensors").read_bytes()[:-100])
    tensors = load_file(partial / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
    (no_tokenizer / "tokenizer.json").unlink()
    for name, reason in {
        "nowhere": "there is no such folder",
        "empty": "cannot be loaded",
        "truncated": "cannot be loaded",
        "partial": "1 weights are missing, such as 'model.layers.0.mlp.up_proj.weight'",
        "no_tokenizer": "cannot be loaded",
    }.items():
        with pytest.raises(ConfigError, match=reason) as caught:
            load_policy(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_dtypes_and_devices_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    new_policy().save(tmp_path)
    with pytest.raises(ConfigError, match="dtype=int8: allowed are float32, bfloat16"):
        load_policy(tmp_path, dtype="int8")
    with pytest.raises(ConfigError, match="device 'abacus'"):
        load_policy(tmp_path, device="abacus")


@pytest.mark.parametrize("short", [0, 1000])
@pytest.mark.parametrize("family, kv_heads", [("qwen3", 4), ("qwen3", 2), ("llama", 2)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_packed_logprobs_equal_the_models_own_forward(
    monkeypatch: pytest.MonkeyPatch, short: int, family: str, kv_heads: int, temperature: float
) -> None:
    monkeypatch.setattr(attention, "SHORT", short)  # plain products, padded blocks
    policy = Policy(model=exact_model(family, kv_heads=kv_heads), tokenizer=tiny_tokenizer())
    samples = random_samples()
    expected = plain_logprobs(policy.model, samples, temperature)
    for tokens_per_batch, chunk_tokens in ((1000, 1000), (30, 3), (1, 1)):
        scored = policy.logprobs(
            samples, temperature=temperature, tokens_per_batch=tokens_per_batch, chunk_tokens=chunk_tokens
        )
        assert [s for s, _ in scored] == samples
        torch.testing.assert_close([x for _, x in scored], expected, rtol=1e-12, atol=1e-12)
        assert not any(x.requires_grad for _, x in scored)


def test_logprobs_in_float32_agree_within_rounding() -> None:
    policy = Policy(model=tiny_model(), tokenizer=tiny_tokenizer())
    samples = random_samples()
    packed, plain = [x for _, x in policy.logprobs(samples)], plain_logprobs(policy.model, samples)
    torch.testing.assert_close(packed, plain, rtol=0, atol=1e-5)


def gemma() -> PreTrainedModel:
    """Caps its attention scores and its logits."""
    return Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=2,
            intermediate_size=48,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            final_logit_softcapping=0.5,
            attn_implementation="eager",
        )
    )


def cohere() -> PreTrainedModel:
    """Scales its logits."""
    return CohereForCausalLM(
        CohereConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=2,
            intermediate_size=48,
            num_attention_heads=4,
            num_key_value_heads=4,
            logit_scale=0.0625,
        )
    )


@pytest.mark.parametrize("build, message", [(gemma, "softcap"), (cohere, "model type 'cohere': its logits are not")])
def test_a_model_that_would_be_scored_wrongly_is_refused(build: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Policy(model=build(), tokenizer=tiny_tokenizer())  # type: ignore[operator]


def test_a_sequence_beyond_a_sliding_window_is_refused() -> None:
    model = tiny_model()
    model.model.layers[1].self_attn.sliding_window = 5
    policy = Policy(model=model, tokenizer=tiny_tokenizer())
    policy.logprobs([training_sample(([2, 3], 0), ([4, 5, 6, 7], 1))])
    with pytest.raises(ConfigError, match="a sequence of 6 tokens in Qwen3Attention with a sliding window of 5"):
        policy.logprobs([training_sample(([2, 3], 0), ([4, 5, 6, 7, 8], 1))])
