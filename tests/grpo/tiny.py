"""Literal training samples and tiny standard models for the tests of grpo and training."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentgrpo.core.types import TrainingSample

VOCABULARY = 40


def training_sample(
    *parts: tuple[Sequence[int], int],
    group: str = "g0",
    index: int = 0,
    advantage: float = 1.0,
    prompt: int | None = None,
    logprobs: Sequence[float] | None = None,
) -> TrainingSample:
    """parts = (token ids, mask); the first is the prompt unless `prompt` says how long that is."""
    ids = tuple(t for tokens, _ in parts for t in tokens)
    mask = tuple(m for tokens, m in parts for _ in tokens)
    given = iter(logprobs if logprobs is not None else [-1.0] * sum(mask))
    return TrainingSample(
        group_id=group,
        sample_index=index,
        token_ids=ids,
        loss_mask=mask,
        rollout_logprobs=tuple(next(given) if m else 0.0 for m in mask),
        advantage=advantage,
        num_prompt_tokens=len(parts[0][0]) if prompt is None else prompt,
        policy_version=0,
    )


def random_samples(seed: int = 0, groups: int = 3, size: int = 3) -> list[TrainingSample]:
    """Groups with a shared prompt; each sample samples, reads, samples and reads again."""
    rng = random.Random(seed)

    def tokens(low: int, high: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high))]

    samples = []
    for g in range(groups):
        prompt = tokens(2, 6)
        for i in range(size):
            parts = ((prompt, 0), (tokens(1, 5), 1), (tokens(1, 6), 0), (tokens(1, 4), 1), (tokens(0, 3), 0))
            samples.append(training_sample(*parts, group=f"g{g}", index=i, advantage=rng.uniform(-2, 2)))
    return samples


def tiny_model(family: str = "qwen3", *, kv_heads: int = 4, tied: bool = True, seed: int = 0) -> PreTrainedModel:
    classes = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}
    config_class, model_class = classes[family]
    config = config_class(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        initializer_range=0.15,  # far enough from uniform that every error shows
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = model_class(config)
    return model.eval()


def exact_model(family: str = "qwen3", **kwargs: object) -> PreTrainedModel:
    """`tiny_model` in float64 throughout; the transformers norms would round to float32."""
    model = tiny_model(family, **kwargs).double()  # type: ignore[arg-type]
    for name, module in list(model.named_modules()):
        if name.endswith("norm"):
            norm = torch.nn.RMSNorm(module.weight.shape[0], eps=module.variance_epsilon, dtype=torch.float64)
            norm.weight = module.weight
            model.set_submodule(name, norm)
    return model


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, VOCABULARY)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def plain_logprobs(
    model: PreTrainedModel,
    samples: Sequence[TrainingSample],
    temperature: float = 1.0,
    *,
    num_tokens: int | None = None,
) -> list[torch.Tensor]:
    """The independent way: right-padded rows, the model's own forward, all logits, or those of the first num_tokens
    ids. [loss tokens] per sample."""
    longest = max(len(s.token_ids) for s in samples)
    pad = [longest - len(s.token_ids) for s in samples]
    ids = torch.tensor([(*s.token_ids, *(0,) * p) for s, p in zip(samples, pad, strict=True)])
    mask = torch.tensor([(1,) * len(s.token_ids) + (0,) * p for s, p in zip(samples, pad, strict=True)])
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[..., :num_tokens]
    logprobs = (logits[:, :-1] / temperature).log_softmax(-1).gather(2, ids[:, 1:, None])[:, :, 0]
    loss = torch.tensor([(*s.loss_mask[1:], *(0,) * p) for s, p in zip(samples, pad, strict=True)]).bool()
    return [row[m] for row, m in zip(logprobs, loss, strict=True)]


def plain_gradient(model: PreTrainedModel, samples: Sequence[TrainingSample]) -> dict[str, torch.Tensor]:
    """Of the policy gradient as a token mean, on-policy and by plain autograd; what does not train is not in it."""
    weight = 1 / sum(sum(s.loss_mask) for s in samples)
    total = torch.zeros((), dtype=torch.float64)
    for sample, logprobs in zip(samples, plain_logprobs(model, samples), strict=True):
        total = total - weight * sample.advantage * torch.exp(logprobs - logprobs.detach()).sum()
    total.backward()
    gradient = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return gradient
