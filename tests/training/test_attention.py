"""Packed attention against one plain causal attention per row."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from agentgrpo.errors import ConfigError
from agentgrpo.grpo.packing import Row
from agentgrpo.training.attention import NAME, packed_attention, packed_layout
from tests.grpo.tiny import tiny_model

CPU = torch.device("cpu")


def attend(rows: list[Row], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **kwargs: object) -> torch.Tensor:
    layout = packed_layout(rows, CPU)
    function = AttentionInterface()[NAME]
    output, weights = function(nn.Identity(), q, k, v, None, scaling=0.3, packed_layout=layout, **kwargs)
    assert weights is None
    return output


def random_rows(seed: int) -> tuple[list[Row], int]:
    """Groups of one to four rows, prompts and own pieces of zero to 40 tokens."""
    rng, rows, n = random.Random(seed), [], 0
    for _ in range(3):
        prompt_start, prompt_length = n, rng.choice([0, 1, 7, 40])
        n += prompt_length
        for _ in range(rng.randint(1, 4)):
            length = rng.choice([1, 2, 9, 39, 40] + [0] * (prompt_length > 0))
            rows.append(Row(prompt_start, prompt_length, n, length))
            n += length
    return rows, n


def qkv(n: int, heads: int, kv_heads: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    shapes = [(1, heads, n, 8), (1, kv_heads, n, 8), (1, kv_heads, n, 8)]
    return [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("seed", range(6))
def test_outputs_and_gradients_equal_one_attention_per_row(seed: int, kv_heads: int) -> None:
    rows, n = random_rows(seed)
    inputs = qkv(n, 4, kv_heads)
    packed = attend(rows, *inputs)

    own = torch.empty(1, n, 4, 8, dtype=torch.float64)
    for row in rows:
        at = [*range(row.prompt_start, row.prompt_start + row.prompt_length), *range(row.start, row.start + row.length)]
        q, k, v = (x[:, :, at].repeat_interleave(4 // x.shape[1], 1) for x in inputs)
        own[:, at] = scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3).transpose(1, 2)
    torch.testing.assert_close(packed, own, rtol=1e-12, atol=1e-12)

    direction = torch.randn_like(packed)
    gradients = [torch.autograd.grad(x, inputs, direction, retain_graph=True) for x in (packed, own)]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-12)


def test_the_blocks_of_a_small_batch() -> None:
    rows = [Row(0, 2, 2, 1), Row(0, 2, 3, 18), Row(21, 0, 21, 19), Row(0, 2, 40, 0)]
    layout = packed_layout(rows, CPU)
    assert layout.blocks == ((2, 20), (1, 3), (1, 2))  # 20 and 19 together, 3 and 2 alone
    tokens = layout.token_of_slot.tolist()
    assert tokens[:20] == [0, 1, *range(3, 21)]
    assert tokens[20:40] == [*range(21, 40), 39]  # padded with its last token
    assert tokens[40:] == [0, 1, 2, 0, 1]
    assert layout.slot_of_token.tolist() == [0, 1, 42, *range(2, 20), *range(20, 39)]
    assert layout.longest == 20


def test_a_row_never_sees_another_rows_own_tokens() -> None:
    rows = [Row(0, 3, 3, 5), Row(0, 3, 8, 4), Row(12, 2, 14, 6)]
    q, k, v = (x.detach() for x in qkv(20, 4, 4))
    before = attend(rows, q, k, v)
    for x in (q, k, v):
        x[:, :, 8:12] = 1e6  # the second row's own tokens
    after = attend(rows, q, k, v)
    others = [*range(8), *range(12, 20)]
    assert torch.equal(before[:, others], after[:, others])
    assert not torch.equal(before[:, 8:12], after[:, 8:12])


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"sliding_window": 4}, "a sequence of 5 tokens in Identity with a sliding window of 4"),
        ({"softcap": 30.0}, "Identity uses softcap"),
        ({"s_aux": torch.zeros(4)}, "Identity uses s_aux"),
    ],
)
def test_other_attention_is_refused_not_approximated(kwargs: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        attend([Row(0, 2, 2, 3)], *qkv(5, 4, 4), **kwargs)


def test_a_window_that_is_never_reached_is_allowed() -> None:
    rows, tensors = [Row(0, 2, 2, 3)], qkv(5, 4, 4)
    assert attend(rows, *tensors, sliding_window=5).equal(attend(rows, *tensors))


def test_a_model_that_hands_no_layout_on_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not pass keyword arguments on"):
        AttentionInterface()[NAME](nn.Identity(), *qkv(5, 4, 4), None, scaling=1.0)


def test_the_models_own_attention_is_back_afterwards_even_after_an_error() -> None:
    model = tiny_model()
    own = model.config._attn_implementation
    with packed_attention(model):
        assert model.config._attn_implementation == NAME
    assert model.config._attn_implementation == own
    with pytest.raises(IndexError), packed_attention(model):
        model(torch.tensor([[10**6]]))
    assert model.config._attn_implementation == own
