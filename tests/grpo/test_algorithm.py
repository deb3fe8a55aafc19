"""The algorithm node: what it allows, and the YAML that ships."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from agentgrpo.core.errors import ConfigError
from agentgrpo.grpo.advantages import GroupRewards
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.losses import LossInputs

CONFIGS = sorted((Path(__file__).parents[2] / "configs/algorithm").glob("*.yaml"))
VESPO = ("vespo_k_positive", "vespo_lambda_positive", "vespo_k_negative", "vespo_lambda_negative")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_shipped_bundle_builds_and_shows_every_key(path: Path) -> None:
    node = yaml.safe_load(path.read_text())
    assert node.pop("name") == path.stem
    assert list(node) == [f.name for f in dataclasses.fields(Algorithm)]
    Algorithm(**node)


def test_the_bundles_are_the_papers() -> None:
    bundles = {p.stem: yaml.safe_load(p.read_text()) for p in CONFIGS}
    keys = ("loss", "advantage", "aggregation", "clip_low", "clip_high", "clip_dual", "kl_coef", "kl", "kl_in")
    assert {n: tuple(b[k] for k in keys) for n, b in bundles.items()} == {
        "grpo": ("clipped", "group_zscore", "sequence_mean", 0.2, 0.2, None, 0.04, "k3", "loss"),
        "grpo_token_mean": ("clipped", "group_zscore", "token_mean", 0.2, 0.2, None, 0.0, "k3", "loss"),
        "dr_grpo": ("clipped", "group_mean", "constant", 0.2, 0.2, None, 0.0, "k3", "loss"),
        "dapo": ("clipped", "group_zscore", "token_mean", 0.2, 0.28, None, 0.0, "k3", "loss"),
        "bnpo": ("clipped", "group_zscore", "token_mean", 0.2, 0.2, None, 0.0, "k3", "loss"),
        "gspo": ("sequence_clipped", "group_zscore", "sequence_mean", 3e-4, 4e-4, None, 0.0, "k3", "loss"),
        "cispo": ("cispo", "group_zscore", "token_mean", 1.0, 4.0, None, 0.0, "k3", "loss"),
        "sapo": ("sapo", "group_zscore", "sequence_mean", None, None, None, 0.0, "k3", "loss"),
        "luspo": ("sequence_clipped", "group_zscore", "sequence_sum", 2e-3, 2.5e-3, None, 0.0, "k3", "loss"),
        "vespo": ("vespo", "group_zscore", "token_mean", None, None, None, 0.0, "k3", "loss"),
        "rloo": ("reinforce", "leave_one_out", "sequence_sum", None, None, None, 0.03, "k1", "reward"),
        "search_r1": ("clipped", "group_zscore", "token_mean", 0.2, 0.2, None, 0.001, "k3", "loss"),
        "mem_alpha": ("clipped", "group_zscore", "token_mean", 0.2, 0.2, 3.0, 0.001, "k3", "loss"),
    }
    assert (bundles["sapo"]["sapo_temperature_positive"], bundles["sapo"]["sapo_temperature_negative"]) == (1.0, 1.05)
    assert [bundles["vespo"][k] for k in VESPO] == [2.0, 3.0, 3.0, 2.0]
    assert bundles["search_r1"]["entropy_coef"] == 0.001
    assert bundles["dapo"]["mask_truncated"]
    assert {n: b["credit"] for n, b in bundles.items() if b["credit"] != "episode"} == {"mem_alpha": "branch"}
    one = ("correction", "correction_cap", "max_staleness", "num_epochs", "replay_groups", "reference")
    assert {n: tuple(b[k] for k in one) for n, b in bundles.items() if n != "vespo"} == dict.fromkeys(
        bundles.keys() - {"vespo"}, ("sequence_mask", 3.0, 0, 1, 0, "frozen")
    )


def test_the_aggregation_gets_tokens_groups_and_the_longest() -> None:
    assert Algorithm().token_weights([1, 3], "ab") == [1 / 2, 1 / 6]
    assert Algorithm(aggregation="token_mean").token_weights([1, 3], "ab") == [1 / 4, 1 / 4]
    assert Algorithm(aggregation="prompt_mean").token_weights([1, 3, 2], "aab") == [1 / 8, 1 / 8, 1 / 4]
    constant = Algorithm(aggregation="constant", max_sampled_tokens=5)
    assert constant.token_weights([1, 3], "ab") == [1 / 10, 1 / 10]


def test_the_advantage_uses_eps() -> None:
    assert Algorithm(advantage_eps=0.5).advantages([GroupRewards([0.0, None, 1.0])]) == [[-0.5, None, 0.5]]
    assert Algorithm(advantage="leave_one_out").advantages([GroupRewards([0.0, 1.0])]) == [[-1.0, 1.0]]


@pytest.mark.parametrize(
    "values, expected",
    [
        # ratio 2 with A = 1
        ({}, -1.2),
        ({"clip_high": 0.5}, -1.5),
        ({"loss": "sequence_clipped"}, -1.0004),
        ({"loss": "cispo"}, 2.0),
        ({"loss": "cispo", "clip_high": 0.25}, 1.25),
        ({"loss": "sapo"}, -4 / (1 + torch.tensor(-1.0).exp().item())),
        ({"loss": "sapo", "sapo_temperature_positive": 2.0}, -2 / (1 + torch.tensor(-2.0).exp().item())),
        ({"loss": "reinforce"}, 1.0),
    ],
)
def test_a_value_that_is_not_given_is_the_published_one(values: dict, expected: float) -> None:
    one = torch.ones(1)
    ratio = torch.tensor([2.0]).log()
    inputs = LossInputs(-one, -one - ratio, one, ratio, one)
    assert Algorithm(**values).token_loss(inputs).loss.tolist() == pytest.approx([expected], rel=1e-6)


def test_the_importance_of_a_kl_estimate_has_a_gradient() -> None:
    """Times the ratio the mean gradient of k1, 0 without it, is that of the KL."""
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-0.2, 0.5, 0.4], dtype=torch.float64).log_softmax(0)
    logprobs = logits.log_softmax(0)
    exact = torch.autograd.grad(logprobs.exp() @ (logprobs - reference), logits, retain_graph=True)[0]
    for kl in ("k1", "k3"):
        algorithm = Algorithm(kl=kl, kl_coef=0.1, kl_importance=True)
        mean = logprobs.exp().detach() @ algorithm.token_kl(logprobs, logprobs.detach(), reference)
        gradient = torch.autograd.grad(mean, logits, retain_graph=True)[0]
        assert gradient.tolist() == pytest.approx(exact.tolist(), abs=1e-15)
    plain = Algorithm(kl="k1", kl_coef=0.1)
    mean = logprobs.exp().detach() @ plain.token_kl(logprobs, logprobs.detach(), reference)
    assert torch.autograd.grad(mean, logits)[0].tolist() == pytest.approx([0.0] * 3, abs=1e-15)


def test_what_follows_from_the_values() -> None:
    assert Algorithm().is_on_policy
    assert not Algorithm(num_epochs=2).is_on_policy
    assert not Algorithm(mini_batches=2).is_on_policy
    assert Algorithm().skips_zero_advantage
    assert not Algorithm().needs_reference
    assert not Algorithm(kl_coef=0.1).skips_zero_advantage
    assert Algorithm(kl_coef=0.1).needs_reference
    assert Algorithm(kl_coef=0.1).has_kl_loss
    in_reward = Algorithm(kl_coef=0.1, kl_in="reward")
    assert (in_reward.needs_reference, in_reward.has_kl_loss, in_reward.skips_zero_advantage) == (True, False, True)
    assert not Algorithm(entropy_coef=0.01).skips_zero_advantage
    assert not Algorithm(top_entropy_fraction=0.2).skips_zero_advantage


@pytest.mark.parametrize(
    "values, message",
    [
        ({"loss": "cipso"}, "algorithm.loss=cipso: allowed are clipped, sequence_clipped, cispo, sapo, vespo, reinf"),
        ({"loss": "cipso"}, "Did you mean 'cispo'?"),
        ({"advantage": "zscore"}, "algorithm.advantage=zscore: allowed are group_zscore"),
        ({"credit": "step"}, "algorithm.credit=step: allowed are episode, turn, branch, position"),
        ({"aggregation": "mean"}, "algorithm.aggregation=mean: allowed are token_mean"),
        ({"kl": "k4"}, "algorithm.kl=k4: allowed are k1, k2, k3, abs, mse"),
        ({"kl_in": "both"}, "algorithm.kl_in=both: allowed are loss, reward"),
        ({"reference": "moving"}, "algorithm.reference=moving: allowed are frozen, ema, periodic"),
        ({"correction": "mask"}, "algorithm.correction=mask: allowed are none, token_truncate"),
        ({"advantage_eps": -1.0}, "algorithm.advantage_eps=-1.0"),
        ({"clip_low": 0.0}, "algorithm.clip_low=0.0"),
        ({"clip_low": 1.5}, "algorithm.clip_low=1.5"),
        ({"clip_high": float("inf")}, "algorithm.clip_high=inf"),
        ({"clip_dual": 1.0}, "algorithm.clip_dual=1.0: allowed is a number > 1"),
        ({"loss": "sapo", "clip_high": 0.2}, "clip_high=0.2 with loss=sapo: only clipped, sequence_clipped, cispo use"),
        ({"loss": "cispo", "clip_dual": 3.0}, "clip_dual=3.0 with loss=cispo: only clipped, sequence_clipped use"),
        ({"sapo_temperature_positive": 1.0}, "sapo_temperature_positive=1.0 with loss=clipped: only sapo uses it"),
        ({"vespo_k_negative": 1.0}, "vespo_k_negative=1.0 with loss=clipped: only vespo uses it; set it to null"),
        ({"loss": "sapo", "sapo_temperature_negative": 0.0}, "algorithm.sapo_temperature_negative=0.0"),
        ({"loss": "vespo", "vespo_lambda_positive": float("nan")}, "algorithm.vespo_lambda_positive=nan"),
        ({"kl_coef": float("nan")}, "algorithm.kl_coef=nan"),
        ({"entropy_coef": -0.1}, "algorithm.entropy_coef=-0.1"),
        ({"top_entropy_fraction": 0.0}, "algorithm.top_entropy_fraction=0.0: allowed is null or 0 < top"),
        ({"top_entropy_fraction": 1.2}, "algorithm.top_entropy_fraction=1.2"),
        ({"correction_cap": 0.5}, "algorithm.correction_cap=0.5: allowed is a finite number >= 1"),
        ({"max_staleness": 2}, "algorithm.max_staleness=2: allowed is 0 or 1"),
        ({"num_epochs": 0}, "algorithm.num_epochs=0: allowed is a whole number >= 1"),
        ({"mini_batches": 1.5}, "algorithm.mini_batches=1.5"),
        ({"replay_groups": -1}, "algorithm.replay_groups=-1: allowed is a whole number >= 0"),
        ({"aggregation": "constant"}, "algorithm.max_sampled_tokens=None: allowed is with aggregation=constant, the"),
        ({"max_sampled_tokens": 128}, "only aggregation=constant uses it"),
        ({"reference": "ema", "kl_coef": 0.1}, "algorithm.reference_decay=None: allowed is with reference=ema"),
        ({"reference_decay": 0.9, "kl_coef": 0.1}, "reference_decay=0.9 with reference=frozen: only reference=ema"),
        ({"reference": "periodic", "kl_coef": 0.1}, "algorithm.reference_every=None"),
        ({"reference_every": 5}, "reference_every=5 with reference=frozen: only reference=periodic uses it"),
        ({"reference": "ema", "reference_decay": 0.9}, "algorithm.reference=ema with kl_coef=0: without a KL term"),
        ({"kl_importance": True}, "algorithm.kl_importance=true with kl_coef=0.0, kl_in=loss"),
        ({"kl_importance": True, "kl_coef": 0.1, "kl_in": "reward"}, "kl_importance=true with kl_coef=0.1, kl_in=rew"),
        ({"loss": "reinforce", "num_epochs": 2}, "algorithm.num_epochs=2 with loss=reinforce: it has no ratio"),
    ],
)
def test_what_is_refused(values: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Algorithm(**values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "keys",
    [
        {"reference": "ema", "reference_decay": 0.99, "kl_coef": 0.1, "kl_importance": True},
        {"reference": "periodic", "reference_every": 10, "kl_coef": 0.1, "kl_in": "reward"},
        {
            "loss": "sequence_clipped",
            "clip_dual": 2.0,
            "correction": "none",
            "max_staleness": 1,
            "top_entropy_fraction": 1.0,
        },
        {"loss": "reinforce", "mini_batches": 2},
    ],
)
def test_what_is_allowed_together(keys: dict[str, Any]) -> None:
    made = dataclasses.asdict(Algorithm(**keys))
    assert {key: made[key] for key in keys} == keys
