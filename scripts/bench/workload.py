"""The parts of a work (works.py) that both sides of a benchmark share: a random-weight Qwen2, and episodes of
prescribed length.

`Script` gives for each (step, row, turn) the forced tokens (the call, the end of the turn) and bans all tokens that
could end a turn earlier, so that every engine samples the same number of tokens. The sampled tokens themselves are each
side's own.

Imports torch, transformers and tokenizers only, because the peers' environments have nothing else of ours.
"""

from __future__ import annotations

import json
import random
from functools import cache, lru_cache
from typing import Any

import torch
from works import Work

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>")
SPECIAL += ("</tool_response>", "<think>", "</think>", "<tools>", "</tools>")
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "ba"}}\n</tool_call><|im_end|>'
DESCRIPTION = "Search the web for a query and return the best passages."
SCHEMA = {
    "type": "function",
    "function": {
        "name": "search",
        "description": DESCRIPTION,
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "the search query"}},
            "required": ["query"],
        },
        "return": {"type": "string"},
    },
}
SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
TOOLS = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
    "function signatures within <tools></tools> XML tags:\n<tools>\n{schema}\n</tools>\n\nFor each function call, "
    "return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)


@lru_cache(maxsize=1)
def lexicon() -> tuple[str, ...]:
    """4,000 pronounceable words."""
    dice, words = random.Random(0), set[str]()
    while len(words) < 4000:
        words.add("".join(dice.choice("bcdfghklmnprstvz") + dice.choice("aeiou") for _ in range(dice.randint(1, 4))))
    return tuple(sorted(words))


@lru_cache(maxsize=2)
def tokenizer(words: int) -> Any:
    """Train a byte-level BPE of at most `words` tokens; it is equal in every process."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    dice = random.Random(1)
    corpus = [prompt_text("", with_tools=True)] * 200
    corpus += [" ".join(dice.choice(lexicon()) for _ in range(200)) for _ in range(400)]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=words,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )


def model(work: Work, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    """Return a model with the same random weights in every process, created on `device`."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tok = tokenizer(work.words)
    config = Qwen2Config(
        vocab_size=work.vocab,
        hidden_size=work.hidden,
        num_hidden_layers=work.layers,
        num_attention_heads=work.heads,
        num_key_value_heads=work.kv_heads,
        intermediate_size=work.ffn,
        max_position_embeddings=work.max_positions,
        tie_word_embeddings=work.tied,
        eos_token_id=tok.eos_token_id,
        pad_token_id=tok.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device(device):
        made = Qwen2ForCausalLM._from_config(config, attn_implementation="sdpa", dtype=dtype)
    made.generation_config.eos_token_id = tok.eos_token_id
    made.generation_config.pad_token_id = tok.pad_token_id
    return made


def prompt_text(question: str, *, with_tools: bool) -> str:
    """The opening in the format of Qwen2.5's chat template."""
    tools = TOOLS.format(schema=json.dumps(SCHEMA)) if with_tools else ""
    system = f"<|im_start|>system\n{SYSTEM}{tools}<|im_end|>\n"
    return f"{system}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def reply_text(text: str) -> str:
    """The text injected after a tool call, in the same format."""
    return f"\n<|im_start|>user\n<tool_response>\n{text}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


class Script:
    """Prescribes a workload's episodes, equal in every process."""

    def __init__(self, work: Work) -> None:
        self.work, self.tokenizer = work, tokenizer(work.words)
        self.end = int(self.tokenizer.eos_token_id)
        self._call = self.tokenizer(CALL)["input_ids"]
        if len(self._call) >= work.least_tokens:
            raise ValueError(f"a tool call is {len(self._call)} tokens, a turn has {work.least_tokens} at least")
        self.banned = torch.zeros(work.vocab)
        """[V], -inf for tokens that are never sampled freely."""
        self.banned[: len(SPECIAL)] = -torch.inf
        self.banned[len(self.tokenizer) :] = -torch.inf

    @cache  # noqa: B019 - a script lives as long as its process
    def forced(self, step: int, row: int, turn: int) -> tuple[int, ...]:
        """The token id at every position of a turn; -1 = sampled freely."""
        length = random.Random(f"{step}/{row}/{turn}").randint(self.work.least_tokens, self.work.most_tokens)
        tail = [self.end] if turn == self.work.turns - 1 else self._call
        return (-1,) * (length - len(tail)) + tuple(tail)

    def apply(self, scores: torch.Tensor, wanted: list[int]) -> torch.Tensor:
        """Change logits [n, V] in place: row i can only draw `wanted[i]`, or any allowed token if that is -1."""
        self.banned = self.banned.to(scores)
        scores += self.banned
        rows = [i for i, token in enumerate(wanted) if token >= 0]
        if rows:
            scores[rows] = -torch.inf
            scores[rows, [wanted[i] for i in rows]] = 0.0
        return scores

    def prepare(self, steps: int) -> None:
        """Prepare everything prescribed for `steps` steps in advance, so that no side's measurement includes it."""
        for step in range(steps):
            for row in range(self.work.rows):
                for turn in range(self.work.turns):
                    self.forced(step, row, turn)
                    self.reply(step, row, turn)

    def question(self, index: int) -> str:
        """The user's text of task `index`; the rendered prompt is about `prompt_tokens` long."""
        empty = len(self.tokenizer(prompt_text("", with_tools=self.work.turns > 1))["input_ids"])
        return self._text(max(8, self.work.prompt_tokens - empty), f"p{index}")

    @cache  # noqa: B019
    def reply(self, step: int, row: int, turn: int) -> str:
        """The tool's reply: `tool_tokens` +- a third."""
        length = random.Random(f"t{step}/{row}/{turn}").randint(
            self.work.tool_tokens * 2 // 3, self.work.tool_tokens * 4 // 3
        )
        return self._text(length, f"{step}/{row}/{turn}")

    def _text(self, length: int, seed: str) -> str:
        dice = random.Random(seed)
        ids = self.tokenizer(" ".join(dice.choice(lexicon()[:100]) for _ in range(length)))["input_ids"]
        return str(self.tokenizer.decode(ids[:length]))
