"""Causal attention by plain products, against the library's."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from agentgrpo.engines.kernels.causal import CHUNK, by_head, by_kv_head, causal_attention, suits


def tensors(n: int, first: int, heads: int, kv_heads: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """A query as a model hands it over, [H, n, D] stored token by token; keys and values of more tokens than are
    seen."""
    generator = torch.Generator().manual_seed(n + first)
    query = torch.randn(n, heads, 16, generator=generator, dtype=dtype).transpose(0, 1)
    return [query, *torch.randn(2, kv_heads, first + n + 3, 16, generator=generator, dtype=dtype)]


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize("n, first", [(1, 0), (1, 70), (CHUNK, 0), (CHUNK + 1, 5), (3 * CHUNK - 1, 200)])
def test_equals_one_masked_attention(n: int, first: int, heads: int, kv_heads: int) -> None:
    query, keys, values = tensors(n, first, heads, kv_heads, torch.float64)
    out = causal_attention(query, keys, values, first, 0.3)
    seen = torch.arange(first + n + 3) <= first + torch.arange(n)[:, None]
    expected = scaled_dot_product_attention(
        query[None], keys[None], values[None], attn_mask=seen, scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(out, expected[0], rtol=1e-12, atol=1e-12)


def test_what_a_query_does_not_see_changes_no_bit() -> None:
    query, keys, values = tensors(100, 30, 4, 2, torch.float32)
    before = causal_attention(query, keys, values, 30, 0.3)
    keys[:, 80:], values[:, 80:] = 7.0, 1e9  # seen by queries 50 and later
    after = causal_attention(query, keys, values, 30, 0.3)
    assert torch.equal(before[:, :50], after[:, :50])
    assert not torch.isclose(before[:, 50:], after[:, 50:]).all(-1).any()


def test_grouping_heads_and_back_is_the_identity() -> None:
    heads = torch.arange(4 * 5 * 2.0).view(4, 5, 2)
    grouped = by_kv_head(heads, 2)
    assert grouped.shape == (2, 5, 2, 2)
    assert grouped.is_contiguous()
    assert torch.equal(grouped[1, 3], heads[2:, 3])
    assert torch.equal(by_head(grouped), heads)
    assert torch.equal(by_kv_head(heads, 2, 0.5), grouped / 2)


@pytest.mark.parametrize("dtype, suited", [(torch.float32, True), (torch.float64, True), (torch.bfloat16, False)])
def test_which_tensors_it_is_for(dtype: torch.dtype, suited: bool) -> None:
    assert suits(torch.zeros(1, dtype=dtype)) is suited
    assert not suits(torch.zeros(1, dtype=dtype, device="meta"))
