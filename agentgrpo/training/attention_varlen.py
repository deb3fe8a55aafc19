"""Attention over packed rows with one call of a variable-length kernel: half precision on CUDA, without padding.

The packed sequence is a row of pieces (prompts and the rows' own tokens). Each piece forms one sequence of queries. Its
keys are its prompt, if it has one, followed by the piece itself; the kernel aligns the last query with the last key. If
torch has no such kernel (before 2.11), `attend_in_blocks` computes the same with padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agentgrpo.grpo.packing import PackedRow

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # torch < 2.10
    varlen_attn = None  # type: ignore[assignment]

_TAKES = frozenset(signature(varlen_attn).parameters if varlen_attn is not None else ())
_IS_THERE = {"scale", "window_size"} <= _TAKES
"""True from torch 2.11 on."""
CAUSAL = (-1, 0)
"""The kernel's window: all keys before the query, none after it."""


class VarlenPieces(NamedTuple):
    """key_tokens [Tk]: the packed token of each key; query_ends and key_ends [pieces + 1] int32, starting with 0."""

    key_tokens: Tensor
    query_ends: Tensor
    key_ends: Tensor
    most_queries: int
    most_keys: int


def suits(tensor: Tensor) -> bool:
    """Return whether this kernel supports tensors like this one."""
    is_half = tensor.dtype in (torch.bfloat16, torch.float16)
    return _IS_THERE and is_half and tensor.device.type == "cuda"


def pieces_of(rows: Sequence[PackedRow], device: torch.device) -> VarlenPieces:
    prompts = {(r.prompt_start, r.prompt_length) for r in rows if r.prompt_length}
    found = [(start, range(start, start + length), range(0)) for start, length in prompts]
    found += [
        (r.start, range(r.start, r.start + r.length), range(r.prompt_start, r.prompt_start + r.prompt_length))
        for r in rows
        if r.length
    ]
    found.sort(key=lambda piece: piece[0])
    num_queries = [len(own) for _, own, _ in found]
    num_keys = [len(prompt) + len(own) for _, own, prompt in found]
    key_tokens = [token for _, own, prompt in found for token in (*prompt, *own)]
    return VarlenPieces(
        torch.tensor(key_tokens, device=device),
        torch.tensor([0, *accumulate(num_queries)], dtype=torch.int32, device=device),
        torch.tensor([0, *accumulate(num_keys)], dtype=torch.int32, device=device),
        max(num_queries),
        max(num_keys),
    )


def attend_in_pieces(query: Tensor, key: Tensor, value: Tensor, pieces: VarlenPieces, scale: float | None) -> Tensor:
    """query [1, H, T, D], key and value [1, Hkv, T, D] -> [1, T, H, D]."""
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    # torch 2.11 has no such argument: its kernel infers it from the numbers of heads
    grouped: dict[str, Any] = {"enable_gqa": query.shape[1] != key.shape[1]} if "enable_gqa" in _TAKES else {}
    out = varlen_attn(
        q.contiguous(),
        k.index_select(0, pieces.key_tokens),
        v.index_select(0, pieces.key_tokens),
        pieces.query_ends,
        pieces.key_ends,
        pieces.most_queries,
        pieces.most_keys,
        scale=scale,
        window_size=CAUSAL,
        **grouped,
    )
    assert isinstance(out, Tensor), "no auxiliary output was asked for"
    return out[None]
