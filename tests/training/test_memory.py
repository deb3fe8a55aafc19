"""What an update needs does not grow with loss tokens times vocabulary."""

from __future__ import annotations

import subprocess
import sys

import pytest

VOCABULARY, TOKENS = 50_000, 2_000
PROGRAM = """
import sys, torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.policy import Policy
from agentgrpo.training.trainer import Trainer
from tests.grpo.tiny import tiny_tokenizer, training_sample

vocabulary, tokens, chunk = map(int, sys.argv[1:])
config = Qwen3Config(vocab_size=vocabulary, hidden_size=16, num_hidden_layers=1, intermediate_size=16, head_dim=8,
                     num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=tokens + 8)
policy = Policy(model=Qwen3ForCausalLM(config), tokenizer=tiny_tokenizer())
optimizer = AdamW(model=policy.model)
trainer = Trainer(policy=policy, reference=None, optimizer=optimizer, algorithm=Algorithm(), total_steps=2,
                  head_chunk_tokens=chunk)

def peak_mb(num_tokens):
    trainer.update([training_sample(([2, 3], 0), ([i % 40 for i in range(num_tokens)], 1))], step=0)
    # not getrusage: that begins with the peak of the process that started this one
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024

few = peak_mb(16)
print(peak_mb(tokens) - few)
"""


def growth_mb(chunk: int) -> float:
    """Peak memory of an update of TOKENS loss tokens beyond that of 16."""
    command = [sys.executable, "-c", PROGRAM, str(VOCABULARY), str(TOKENS), str(chunk)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_logits_take_a_chunk_of_the_vocabulary_and_not_all_loss_tokens() -> None:
    chunk_mb, all_mb = (n * VOCABULARY * 4 / 2**20 for n in (64, TOKENS))
    assert growth_mb(64) < 2 * chunk_mb + 20  # one chunk has 12 MB
    assert growth_mb(TOKENS) > 0.9 * all_mb  # 381 MB: it can be seen
