"""Tiny random models, a tokenizer and multi-turn episodes for the engine's tests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentgrpo.engines.base import Completion, Engine, SamplingParams, SeedKey
from agentgrpo.engines.hf import HFEngine
from agentgrpo.engines.vocabulary import Vocabulary

VOCAB = 320
EOS = 257
SAMPLING = SamplingParams(max_tokens=9, stop_token_ids=(EOS,))


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """256 byte tokens, then <|pad|> 256, <|eos|> 257, </search> 258; the model has ids beyond, as real ones do."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<|pad|>", "<|eos|>")])
    backend.add_tokens([AddedToken("</search>", normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|eos|>", pad_token="<|pad|>")


@cache
def saved_tokenizer() -> PreTrainedTokenizerBase:
    """The tokenizer as the folder of a Qwen2 gives it back: with <|endoftext|> 259, one token more to be sampled."""
    with TemporaryDirectory() as folder:
        model("qwen2").config.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    return loaded


def encode(text: str) -> list[int]:
    return list(tokenizer().encode(text))


def model(family: str = "qwen3", *, seed: int = 0) -> PreTrainedModel:
    """Random weights, spread wide enough that sampled tokens depend on the context."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,
        "attn_implementation": "sdpa",
    }
    made: PreTrainedModel
    if family == "qwen3":
        made = Qwen3ForCausalLM(Qwen3Config(**shape, num_key_value_heads=4, head_dim=32, tie_word_embeddings=True))
    elif family == "qwen2":
        made = Qwen2ForCausalLM(Qwen2Config(**shape, num_key_value_heads=2))
    else:
        made = LlamaForCausalLM(LlamaConfig(**shape, num_key_value_heads=1))
    return made.eval()


def engine(policy: PreTrainedModel | None = None, **settings: Any) -> HFEngine:
    return HFEngine(model=policy or model(), tokenizer=tokenizer(), run_seed=7, **settings)


def prompt(task: int) -> list[int]:
    return [(37 * task + 11 * j) % 256 for j in range(9 + 7 * task)]


Pause = Callable[[], Awaitable[None]]


async def no_pause() -> None: ...


async def play(
    backend: Engine,
    task: int,
    sample: int,
    *,
    turns: int = 3,
    sampling: SamplingParams = SAMPLING,
    pause: Pause = no_pause,
) -> tuple[list[int], list[Completion]]:
    """One episode: `turns` sampled turns with something injected between; returns all tokens, and the completions. What
    is injected depends on the episode only."""
    rng = random.Random(1000 * task + sample)
    context = prompt(task)
    completions: list[Completion] = []
    key = SeedKey("train/0", f"task-{task}", sample, 0)
    try:
        for turn in range(turns):
            await pause()
            completions.append(await backend.generate(context, sampling, key._replace(turn=turn)))
            context += completions[-1].token_ids
            if turn < turns - 1:
                context += [rng.randrange(256) for _ in range(rng.choice((0, 1, 5, 7, 26, 40)))]
    finally:
        backend.release(key)
    return context, completions


async def play_chunks(
    backend: Engine, task: int, sample: int, *, opening: int = 0, instructions: int = 40, pause: Pause = no_pause
) -> tuple[list[int], list[Completion]]:
    """One episode of fresh prompts, one sampled turn each: instructions that all episodes have, what was kept of the
    turns before, a chunk. opening: how many of the instructions the engine is told of."""
    completions: list[Completion] = []
    memory: list[int] = []
    key = SeedKey("train/0", f"dialogue-{task}", sample, 0)
    sampling = replace(SAMPLING, opening=opening)
    try:
        for turn in range(4):
            await pause()
            chunk = [(37 * task + 11 * turn + j) % 256 for j in range(12 + 5 * task)]
            context = [*range(100, 100 + instructions), *memory, *chunk]
            completions.append(await backend.generate(context, sampling, key._replace(turn=turn)))
            memory += completions[-1].token_ids[: 4 * (turn % 3)]
    finally:
        backend.release(key)
    return context, completions


async def play_all(
    backend: Engine, episodes: Sequence[tuple[int, int]], *, episode: Callable[..., Any] = play, **options: Any
) -> dict[tuple[int, int], list[Completion]]:
    played = await asyncio.gather(*(episode(backend, *e, **options) for e in episodes))
    return {e: completions for e, (_, completions) in zip(episodes, played, strict=True)}


def bits(played: dict[tuple[int, int], list[Completion]]) -> dict[tuple[int, int], list[tuple[Any, ...]]]:
    """Tokens, log-probs and ends, without the clocks: equal iff not one bit differs."""
    return {e: [(c.token_ids, c.logprobs, c.finish_reason) for c in cs] for e, cs in played.items()}


@torch.no_grad()
def plain_logprobs(policy: PreTrainedModel, tokens: Sequence[int], *, all_rows: bool = False) -> list[float]:
    """log p of tokens[1:] by one full forward pass of the model itself, among tokens or among all rows of its output
    layer."""
    ids = torch.tensor([tokens])
    logits = policy(input_ids=ids, use_cache=False).logits[0, :-1].double()
    logprobs = (logits if all_rows else Vocabulary.of(VOCAB, tokenizer()).within(logits)).log_softmax(-1)
    scores: list[float] = logprobs.gather(-1, ids[0, 1:, None])[:, 0].tolist()
    return scores
