"""A folder in which agents are trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.renderers import families


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the agents, questions and a tiny random chat model."""
    monkeypatch.chdir(tmp_path)
    tokenizer = families.tokenizer("chatml")
    torch.manual_seed(0)
    shape = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        initializer_range=0.15,
    )
    Qwen2ForCausalLM(shape).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    splits = ["train"] * 4 + ["test"] * 2
    asked = [{"question": f"What is {i}+1?", "answers": [str(i + 1)]} for i in range(len(splits))]
    rows = [{"id": f"q{i}", "split": split, **asked[i]} for i, split in enumerate(splits)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path
