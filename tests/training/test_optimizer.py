"""AdamW with its schedule and its state, and Muon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import nn

from agentgrpo.core.errors import CheckpointError, ConfigError
from agentgrpo.training.optimizer import AdamW, Muon


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))


def gradients(model: nn.Module, count: int, scale: float = 1.0, seed: int = 1) -> Iterator[None]:
    """Fill in `count` different sets of gradients."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        for p in model.parameters():
            p.grad = (torch.randn(p.shape, generator=generator) * scale).to(p.dtype)
        yield


def run(model: nn.Module, optimizer: AdamW, count: int, seed: int = 1) -> None:
    for step, _ in enumerate(gradients(model, count, seed=seed)):
        optimizer.step(lr=optimizer.learning_rate(step, 10), gradient_norm=optimizer.gradient_norm())


def test_the_shipped_yaml_is_the_signature() -> None:
    path = Path(__file__).parents[2] / "configs/optimizer/adamw.yaml"
    node = yaml.safe_load(path.read_text())
    assert node.pop("name") == "adamw"
    keywords = AdamW.__init__.__kwdefaults__
    assert {k: tuple(v) if k == "betas" else v for k, v in node.items()} == keywords
    AdamW(model=network(), **node)


def test_the_learning_rate_by_hand() -> None:
    optimizer = AdamW(model=network(), lr=1.0, warmup_steps=2, final_fraction=0.2)
    rates = [optimizer.learning_rate(step, 5) for step in range(7)]
    assert rates == pytest.approx([0.5, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])
    constant = AdamW(model=network(), lr=1.0, warmup_steps=0, final_fraction=1.0)
    assert [constant.learning_rate(step, 1) for step in range(3)] == [1.0, 1.0, 1.0]


def test_it_steps_like_torchs_adamw_on_clipped_gradients() -> None:
    mine, theirs = network(), network()
    optimizer = AdamW(model=mine, lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.05, max_grad_norm=0.5)
    matrices = [p for p in theirs.parameters() if p.ndim == 2]
    vectors = [p for p in theirs.parameters() if p.ndim == 1]
    reference = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.8, 0.9),
        eps=1e-6,
        foreach=False,
    )
    schedule = zip(gradients(mine, 6), gradients(theirs, 6), strict=True)
    for step, _ in enumerate(schedule):
        norm = optimizer.gradient_norm()
        assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)))
        lr = optimizer.learning_rate(step, 6)
        for group in reference.param_groups:
            group["lr"] = lr
        optimizer.step(lr=lr, gradient_norm=norm)
        reference.step()
        assert all(p.grad is None for p in mine.parameters())
    torch.testing.assert_close(list(mine.parameters()), list(theirs.parameters()), rtol=1e-6, atol=1e-7)


def test_small_gradients_are_not_scaled() -> None:
    model = network()
    optimizer = AdamW(lr=1e-3, model=model, betas=(0.0, 0.0), max_grad_norm=1.0)
    for _ in gradients(model, 1, scale=1e-3):
        first = next(model.parameters()).grad.clone()
        optimizer.step(lr=0.1, gradient_norm=optimizer.gradient_norm())
    assert torch.equal(optimizer.state_tensors()["0.weight.exp_avg"], first)


def test_the_state_survives_a_file_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole, model = network(), network()
    straight, first = AdamW(lr=1e-3, model=whole), AdamW(lr=1e-3, model=model)
    run(whole, straight, 3)
    run(whole, straight, 4, seed=2)

    run(model, first, 3)
    save_file(first.state_tensors(), tmp_path / "optimizer.safetensors")
    resumed = AdamW(lr=1e-3, model=model)
    resumed.load_state_tensors(load_file(tmp_path / "optimizer.safetensors"))
    run(model, resumed, 4, seed=2)

    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), model.parameters(), strict=True))
    expected = straight.state_tensors()
    assert resumed.state_tensors().keys() == expected.keys()
    assert all(torch.equal(t, expected[n]) for n, t in resumed.state_tensors().items())
    assert expected["0.weight.step"] == 7


def test_without_the_state_it_would_go_on_differently() -> None:
    whole, model = network(), network()
    straight = AdamW(lr=1e-3, model=whole)
    run(whole, straight, 3)
    run(whole, straight, 1, seed=2)
    run(model, AdamW(lr=1e-3, model=model), 3)
    run(model, AdamW(lr=1e-3, model=model), 1, seed=2)
    assert not torch.equal(next(whole.parameters()), next(model.parameters()))


def test_the_state_has_the_same_names_before_the_first_step() -> None:
    optimizer = AdamW(lr=1e-3, model=network())
    names = [f"{p}.{k}" for p in ("0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias")
             for k in ("exp_avg", "exp_avg_sq", "step")]  # fmt: skip
    assert list(optimizer.state_tensors()) == names
    assert all(float(t.abs().sum()) == 0 for t in optimizer.state_tensors().values())


def test_a_state_that_does_not_fit_is_refused_and_nothing_is_loaded() -> None:
    optimizer = AdamW(lr=1e-3, model=network())
    good = {n: torch.ones_like(t) for n, t in optimizer.state_tensors().items()}
    for bad, message in (
        (
            {n: t for n, t in good.items() if n != "1.bias.step"},
            "1 names differ from this model's, such as '1.bias.step'",
        ),
        ({**good, "3.weight.step": torch.ones(())}, "such as '3.weight.step'"),
        ({**good, "2.weight.exp_avg": torch.ones(7, 3)}, r"'2.weight.exp_avg': \(7, 3\) torch.float32"),
        ({**good, "2.weight.exp_avg": torch.ones(3, 7).double()}, "torch.float64, but the model needs"),
    ):
        with pytest.raises(CheckpointError, match=message):
            optimizer.load_state_tensors(bad)
        assert all(float(t.abs().sum()) == 0 for t in optimizer.state_tensors().values())


def half_and_not() -> nn.Module:
    """Both weights in half precision, the norm between them not."""
    model = network().bfloat16()
    model[1].float()
    return model


def test_updates_too_small_for_half_precision_are_not_lost() -> None:
    """At 0.3 neighbouring bfloat16 numbers are 2^-9 = 0.00195 apart: 100 steps of 1e-6 move the master alone, 2000 the
    weight too; without a master it never moves. (In float32 a step is 1.013e-6 there.)"""
    model, bare = nn.Linear(2, 1, bias=False), nn.Parameter(torch.full((1, 2), 0.3).bfloat16())
    nn.init.constant_(model.weight, 0.3)
    model.bfloat16()
    start = model.weight.detach().float().clone()
    optimizer = AdamW(lr=1e-3, model=model, warmup_steps=0)
    plain = torch.optim.AdamW([bare], lr=1e-6, betas=(0.9, 0.99), weight_decay=0.0)
    for step in range(2000):
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step(lr=1e-6, gradient_norm=optimizer.gradient_norm())
        bare.grad = torch.ones_like(bare)
        plain.step()
        moved = start - optimizer.state_tensors()["weight.master"]
        if step == 99:
            torch.testing.assert_close(moved, torch.full((1, 2), 1e-4), rtol=2e-2, atol=0)
            assert torch.equal(model.weight.float(), start)
    torch.testing.assert_close(moved, torch.full((1, 2), 2e-3), rtol=2e-2, atol=0)
    assert torch.equal(start - model.weight.float(), torch.full((1, 2), 2.0**-9))
    assert torch.equal(bare.float(), start)


def test_a_master_steps_like_float32_weights_and_its_weight_is_the_rounded_copy() -> None:
    half, single = half_and_not(), half_and_not().float()
    ours, theirs = AdamW(lr=1e-3, model=half, weight_decay=0.1), AdamW(lr=1e-3, model=single, weight_decay=0.1)
    for step, (_, _) in enumerate(zip(gradients(half, 5), gradients(single, 5), strict=True)):
        for p, q in zip(half.parameters(), single.parameters(), strict=True):
            q.grad = p.grad.float().clone()
        norms = [optimizer.gradient_norm() for optimizer in (ours, theirs)]
        assert norms[0] == norms[1]
        for optimizer, norm in zip((ours, theirs), norms, strict=True):
            optimizer.step(lr=optimizer.learning_rate(step, 5), gradient_norm=norm)
        assert all(p.grad is None for p in half.parameters())
    found, expected = ours.state_tensors(), theirs.state_tensors()
    masters = {n for n in found if n.endswith(".master")}
    assert masters == {"0.weight.master", "0.bias.master", "2.weight.master", "2.bias.master"}
    assert all(torch.equal(found[n], expected[n]) for n in found.keys() - masters)
    for (name, p), q in zip(half.named_parameters(), single.parameters(), strict=True):
        assert torch.equal(found[f"{name}.master"] if p.dtype == torch.bfloat16 else p, q)
        assert torch.equal(p, q.to(p.dtype))


def test_a_master_survives_a_file(tmp_path: Path) -> None:
    whole, model = half_and_not(), half_and_not()
    straight, first = AdamW(model=whole, lr=1e-5), AdamW(model=model, lr=1e-5)
    run(whole, straight, 7)
    run(model, first, 3)
    save_file(first.state_tensors(), tmp_path / "optimizer.safetensors")
    resumed = AdamW(model=model, lr=1e-5)
    resumed.load_state_tensors(load_file(tmp_path / "optimizer.safetensors"))
    generator = gradients(model, 7)
    for step, _ in enumerate(generator):
        if step >= 3:
            resumed.step(lr=resumed.learning_rate(step, 10), gradient_norm=resumed.gradient_norm())
    expected = straight.state_tensors()
    assert all(torch.equal(t, expected[n]) for n, t in resumed.state_tensors().items())
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), model.parameters(), strict=True))


def test_the_norm_of_half_precision_gradients_has_full_precision() -> None:
    model = nn.Linear(1000, 1, bias=False).bfloat16()
    model.weight.grad = torch.full((1, 1000), 0.25, dtype=torch.bfloat16)
    assert AdamW(lr=1e-3, model=model).gradient_norm() == pytest.approx(0.25 * 1000**0.5, rel=1e-6)


def test_frozen_parameters_have_no_state() -> None:
    model = network()
    model[0].requires_grad_(False)
    assert {n.split(".")[0] for n in AdamW(lr=1e-3, model=model).state_tensors()} == {"1", "2"}


@pytest.mark.parametrize(
    "values, message",
    [
        ({"lr": 0.0}, "optimizer.lr=0.0"),
        ({"betas": (0.9, 1.0)}, "optimizer.betas"),
        ({"betas": (0.9,)}, "optimizer.betas"),
        ({"weight_decay": -0.1}, "optimizer.weight_decay=-0.1"),
        ({"eps": 0.0}, "optimizer.eps=0.0"),
        ({"warmup_steps": -1}, "optimizer.warmup_steps=-1"),
        ({"final_fraction": 1.1}, "optimizer.final_fraction=1.1"),
        ({"max_grad_norm": 0.0}, "optimizer.max_grad_norm=0.0"),
    ],
)
def test_what_is_refused(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AdamW(model=network(), **values)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has no Muon before 2.9")
@pytest.mark.parametrize("shape", [(8, 8), (16, 8), (8, 16)])
def test_muon_steps_like_torchs_within_its_bfloat16(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator)
    mine, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizers = [Muon([mine], lr=0.1), torch.optim.Muon([theirs], lr=0.1, weight_decay=0.0)]
    for _ in range(3):
        gradient = torch.randn(shape, generator=generator)
        for p, optimizer in zip((mine, theirs), optimizers, strict=True):
            p.grad = gradient.clone()
            optimizer.step()
    moved = (mine - start).norm()
    assert (mine - theirs).norm() < 0.02 * moved
    assert moved > 0.3


def test_muon_moves_along_an_orthogonal_matrix() -> None:
    p = nn.Parameter(torch.zeros(8, 12))
    p.grad = torch.randn(8, 12, generator=torch.Generator().manual_seed(0))
    Muon([p], lr=1.0).step()
    assert ((torch.linalg.svdvals(p.detach()) - 1).abs() < 0.35).all()
