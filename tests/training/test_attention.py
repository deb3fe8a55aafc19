"""Packed attention against one plain causal attention per row."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from agentgrpo.core.errors import ConfigError
from agentgrpo.grpo.packing import PackedRow
from agentgrpo.training import attention_varlen
from agentgrpo.training.attention import (
    NAME,
    SHORT,
    PackedAttention,
    PackedLayout,
    attend_in_blocks,
    blocks_of,
    contexts,
    packed_attention,
)
from agentgrpo.training.attention_varlen import attend_in_pieces, pieces_of
from tests.grpo.tiny import tiny_model

CPU = torch.device("cpu")


def attend(rows: list[PackedRow], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **kwargs: object) -> torch.Tensor:
    layout = PackedLayout(rows, CPU)
    function = AttentionInterface()[NAME]
    output, weights = function(nn.Identity(), q, k, v, None, scaling=0.3, packed_layout=layout, **kwargs)
    assert weights is None
    return output


def random_rows(seed: int) -> tuple[list[PackedRow], int]:
    """Groups of one to four rows, prompts and own pieces of zero to 150 tokens."""
    rng, rows, n = random.Random(seed), [], 0
    for _ in range(3):
        prompt_start, prompt_length = n, rng.choice([0, 1, 7, 40, 70])
        n += prompt_length
        for _ in range(rng.randint(1, 4)):
            length = rng.choice([1, 2, 9, 39, 40, 150] + [0] * (prompt_length > 0))
            rows.append(PackedRow(prompt_start, prompt_length, n, length))
            n += length
    return rows, n


def qkv(n: int, heads: int, kv_heads: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    shapes = [(1, heads, n, 8), (1, kv_heads, n, 8), (1, kv_heads, n, 8)]
    return [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]


def attend_blocks(rows: list[PackedRow], *qkv: torch.Tensor) -> torch.Tensor:
    return attend_in_blocks(*qkv, blocks_of(rows, CPU), 0.3)


def attend_products(rows: list[PackedRow], *qkv: torch.Tensor) -> torch.Tensor:
    return PackedAttention.apply(*qkv, contexts(rows), 0.3)


def reference_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool = True,
) -> torch.Tensor:
    """What torch documents of `varlen_attn`, which runs on CUDA only: sequence by sequence, the causal diagonal ending
    in the bottom right corner."""
    assert (cu_seq_q.dtype, cu_seq_k.dtype, window_size) == (torch.int32, torch.int32, (-1, 0))
    q_ends, k_ends = cu_seq_q.tolist(), cu_seq_k.tolist()
    assert (q_ends[0], q_ends[-1], k_ends[0], k_ends[-1]) == (0, len(query), 0, len(key))
    out = []
    for (q0, q1), (k0, k1) in zip(pairwise(q_ends), pairwise(k_ends), strict=True):
        n, m = q1 - q0, k1 - k0
        assert 0 < n <= max_q
        assert n <= m <= max_k
        seen = torch.arange(m) <= torch.arange(m - n, m)[:, None]
        q, k, v = (x.transpose(0, 1)[None] for x in (query[q0:q1], key[k0:k1], value[k0:k1]))
        one = scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=enable_gqa)
        out.append(one[0].transpose(0, 1))
    return torch.cat(out)


def attend_varlen(rows: list[PackedRow], *qkv: torch.Tensor) -> torch.Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_varlen, "varlen_attn", reference_varlen)
        return attend_in_pieces(*qkv, pieces_of(rows, CPU), 0.3)


def test_the_kernel_of_torch_2_11_is_not_told_of_grouped_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, n = random_rows(0)
    inputs = [x.detach() for x in qkv(n, 4, 2)]
    expected, told = attend_varlen(rows, *inputs), []

    def of_2_11(*args: torch.Tensor, scale: float, window_size: tuple[int, int]) -> torch.Tensor:
        told.append(window_size)
        return reference_varlen(*args, scale=scale, window_size=window_size)

    monkeypatch.setattr(attention_varlen, "varlen_attn", of_2_11)
    monkeypatch.setattr(attention_varlen, "_TAKES", frozenset({"scale", "window_size"}))
    torch.testing.assert_close(attend_in_pieces(*inputs, pieces_of(rows, CPU), 0.3), expected)
    assert told == [attention_varlen.CAUSAL]


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("function", [attend, attend_products, attend_blocks, attend_varlen])
def test_outputs_and_gradients_equal_one_attention_per_row(function: Callable, seed: int, kv_heads: int) -> None:
    rows, n = random_rows(seed)
    inputs = qkv(n, 4, kv_heads)
    packed = function(rows, *inputs)

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
    rows = [PackedRow(0, 2, 2, 1), PackedRow(0, 2, 3, 18), PackedRow(21, 0, 21, 19), PackedRow(0, 2, 40, 0)]
    layout = blocks_of(rows, CPU)
    assert layout.shapes == ((2, 20), (1, 3), (1, 2))  # 20 and 19 together, 3 and 2 alone
    tokens = layout.token_of_slot.tolist()
    assert tokens[:20] == [0, 1, *range(3, 21)]
    assert tokens[20:40] == [*range(21, 40), 39]  # padded with its last token
    assert tokens[40:] == [0, 1, 2, 0, 1]
    assert layout.slot_of_token.tolist() == [0, 1, 42, *range(2, 20), *range(20, 39)]
    assert PackedLayout(rows, CPU).longest == 20


@pytest.mark.parametrize("seed", range(6))
def test_where_only_some_tokens_are_read_theirs_are_the_same_and_the_rest_zero(seed: int) -> None:
    rows, n = random_rows(seed)
    rng = random.Random(seed)
    read = torch.tensor(sorted(rng.sample(range(n), n if seed == 0 else n // 3)))
    inputs, scale = qkv(n, 4, 2), 0.3
    whole = PackedAttention.apply(*inputs, contexts(rows), scale)
    narrow = PackedAttention.apply(*inputs, contexts(rows, read), scale)
    torch.testing.assert_close(narrow[:, read], whole[:, read], rtol=1e-12, atol=1e-12)
    unread = torch.ones(n, dtype=torch.bool).index_fill(0, read, False)
    assert not narrow[:, unread].any()
    direction = torch.randn_like(whole)
    direction[:, unread] = 0
    gradients = [torch.autograd.grad(x, inputs, direction) for x in (narrow, whole)]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("length", [SHORT - 1, SHORT])
def test_the_last_layer_and_no_other_is_narrowed(length: int) -> None:
    model, seen = tiny_model(), []
    layout = PackedLayout([PackedRow(0, 2, 2, length - 2)], CPU, read=torch.tensor([length - 1]))
    for layer in model.base_model.layers:
        layer.mlp.gate_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    with packed_attention(model, layout):
        model.base_model(input_ids=torch.arange(length)[None] % 9, use_cache=False, packed_layout=layout)
    assert seen == [length] * (len(model.base_model.layers) - 1) + [1]


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(3))
def test_the_variable_length_kernel_computes_what_the_reference_does(seed: int) -> None:
    rows, n = random_rows(seed)
    inputs = [x.detach().repeat(1, 1, 1, 8).requires_grad_() for x in qkv(n, 4, 2)]
    expected = attend_varlen(rows, *inputs)
    pieces = pieces_of(rows, torch.device("cuda"))
    found = attend_in_pieces(*(x.to("cuda", torch.bfloat16) for x in inputs), pieces, 0.3).cpu().double()
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    direction = torch.randn_like(expected)
    gradients = [torch.autograd.grad(x, inputs, direction) for x in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=0.05, atol=0.1)


def test_a_row_never_sees_another_rows_own_tokens() -> None:
    rows = [PackedRow(0, 3, 3, 5), PackedRow(0, 3, 8, 4), PackedRow(12, 2, 14, 6)]
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
        attend([PackedRow(0, 2, 2, 3)], *qkv(5, 4, 4), **kwargs)


def test_a_window_that_is_never_reached_is_allowed() -> None:
    rows, tensors = [PackedRow(0, 2, 2, 3)], qkv(5, 4, 4)
    assert attend(rows, *tensors, sliding_window=5).equal(attend(rows, *tensors))


def test_a_model_that_hands_no_layout_on_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not pass keyword arguments on"):
        AttentionInterface()[NAME](nn.Identity(), *qkv(5, 4, 4), None, scaling=1.0)


def test_the_models_own_attention_is_back_afterwards_even_after_an_error() -> None:
    model = tiny_model()
    own = model.config._attn_implementation
    layout = PackedLayout([PackedRow(0, 1, 1, 2)], CPU)
    with packed_attention(model, layout):
        assert model.config._attn_implementation == NAME
    assert model.config._attn_implementation == own
    with pytest.raises(IndexError), packed_attention(model, layout):
        model(torch.tensor([[10**6]]))
    assert model.config._attn_implementation == own
