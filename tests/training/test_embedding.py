"""Looking embeddings up, with a gradient for the rows that were."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from agentgrpo.training.policy import look_up

IDS = torch.tensor([3, 1, 3, 7])
DIRECTION = torch.arange(12.0).view(4, 3)


def embedding(padding: int | None = None) -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(9, 3, padding_idx=padding)


@pytest.mark.parametrize("padding", [None, 1])
@pytest.mark.parametrize("before", [None, 2.0])
def test_the_gradient_is_autograds_added_to_what_is_there(before: float | None, padding: int | None) -> None:
    ours, own = embedding(padding), embedding(padding)
    if before is not None:
        ours.weight.grad, own.weight.grad = torch.full((9, 3), before), torch.full((9, 3), before)
    found, expected = look_up(ours, IDS), own(IDS)
    assert torch.equal(found, expected)
    (2 * found).backward(DIRECTION)
    (2 * expected).backward(DIRECTION)
    assert torch.equal(ours.weight.grad, own.weight.grad)


def test_it_adds_in_place_and_makes_no_other_dense_gradient() -> None:
    ours = embedding()
    ours.weight.grad = there = torch.zeros(9, 3)
    seen: list[torch.Tensor] = []
    ours.weight.register_hook(seen.append)
    look_up(ours, IDS).backward(DIRECTION)
    assert ours.weight.grad is there
    assert there.abs().sum(1).nonzero()[:, 0].tolist() == [1, 3, 7]
    assert all(g is None for g in seen)


def test_frozen_and_unusual_embeddings_are_left_to_themselves() -> None:
    class Scaled(nn.Embedding):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 5 * super().forward(input)

    torch.manual_seed(0)
    scaled, frozen = Scaled(9, 3), embedding().requires_grad_(False)
    assert torch.equal(look_up(scaled, IDS), 5 * embedding()(IDS))
    assert not look_up(frozen, IDS).requires_grad
    with torch.no_grad():
        assert not look_up(embedding(), IDS).requires_grad
