from __future__ import annotations

import torch

from agentgrpo.engines.slots import SlotPool


def pool(max_slots: int = 6, max_tokens: int = 40) -> SlotPool:
    return SlotPool(
        num_layers=2,
        num_kv_heads=2,
        head_dim=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_slots=max_slots,
        max_tokens=max_tokens,
    )


def filled() -> tuple[SlotPool, torch.Tensor]:
    made = pool()
    made.reserve(2, 8)
    keys = torch.randn(2, 3, 4)
    made.write(1, torch.tensor([0, 1, 1]), torch.tensor([5, 0, 1]), keys, -keys)
    return made, keys


def test_what_is_written_is_read_from_its_layer_slot_and_position():
    made, keys = filled()
    expected = torch.zeros(2, 2, 8, 4)
    expected[0, :, 5], expected[1, :, 0], expected[1, :, 1] = keys[:, 0], keys[:, 1], keys[:, 2]
    found = made.rows(1, torch.tensor([1, 0]), 8)
    assert torch.equal(found[0], expected[[1, 0]])
    assert torch.equal(found[1], -expected[[1, 0]])
    assert torch.equal(made.row(1, 1, 2)[1], -expected[1:2, :, :2])
    assert not made.rows(0, torch.tensor([0, 1]), 8)[0].any()


def test_growing_doubles_up_to_the_limits_and_keeps_everything():
    made, keys = filled()
    assert made.shape == (2, 8)
    made.reserve(1, 3)
    assert made.shape == (2, 8)
    made.reserve(3, 9)
    assert made.shape == (4, 16)
    made.reserve(6, 40)
    assert made.shape == (6, 40)
    assert torch.equal(made.row(1, 0, 40)[0][0, :, 5], keys[:, 0])
    assert made.row(1, 0, 40)[0].count_nonzero() == 8
    made.clear()
    assert made.shape == (0, 0)


def test_copy_prefix_and_scrub():
    made, keys = filled()
    made.reserve(4, 8)
    made.copy_prefix(1, [2, 3], 1)
    assert torch.equal(made.row(1, 3, 8)[1][0, :, 0], -keys[:, 1])
    assert made.row(1, 3, 8)[1].count_nonzero() == 8
    made.write(0, torch.tensor([2]), torch.tensor([7]), torch.full((2, 1, 4), torch.nan), torch.zeros(2, 1, 4))
    made.scrub(2)
    assert not made.row(0, 2, 8)[0].any()
    assert not made.row(1, 2, 8)[1].any()
    assert torch.equal(made.row(1, 3, 1)[0][0, :, 0], keys[:, 1])
