"""The algorithm node: what it allows, and the YAML that ships."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from agentgrpo.errors import ConfigError
from agentgrpo.grpo.algorithm import Algorithm

CONFIGS = sorted((Path(__file__).parents[2] / "configs/algorithm").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_shipped_bundle_builds_and_shows_every_key(path: Path) -> None:
    node = yaml.safe_load(path.read_text())
    assert node.pop("name") == path.stem
    assert list(node) == [f.name for f in dataclasses.fields(Algorithm)]
    Algorithm(**node)


def test_the_bundles_are_the_papers() -> None:
    bundles = {p.stem: yaml.safe_load(p.read_text()) for p in CONFIGS}
    assert {n: (b["advantage"], b["aggregation"], b["clip_low"], b["clip_high"]) for n, b in bundles.items()} == {
        "grpo": ("group_zscore", "sequence_mean", 0.2, 0.2),
        "grpo_token_mean": ("group_zscore", "token_mean", 0.2, 0.2),
        "dr_grpo": ("group_mean", "constant", 0.2, 0.2),
        "dapo": ("group_zscore", "token_mean", 0.2, 0.28),
    }


def test_the_aggregation_is_the_losss_own_unless_named() -> None:
    assert Algorithm().token_weights([1, 3]) == [1 / 2, 1 / 6]
    assert Algorithm(loss="dapo").token_weights([1, 3]) == [1 / 4, 1 / 4]
    assert Algorithm(loss="dr_grpo", max_sampled_tokens=5).token_weights([1, 3]) == [1 / 10, 1 / 10]
    assert Algorithm(aggregation="token_mean").token_weights([1, 3]) == [1 / 4, 1 / 4]


def test_the_advantage_uses_eps() -> None:
    assert Algorithm(advantage_eps=0.5).advantages([0.0, None, 1.0]) == [-0.5, None, 0.5]
    assert Algorithm(advantage="leave_one_out").advantages([0.0, 1.0]) == [-1.0, 1.0]


def test_what_follows_from_the_values() -> None:
    assert Algorithm().is_on_policy
    assert not Algorithm(num_epochs=2).is_on_policy
    assert not Algorithm(mini_batches=2).is_on_policy
    assert Algorithm().skips_zero_advantage
    assert not Algorithm().needs_reference
    assert not Algorithm(kl_coef=0.1).skips_zero_advantage
    assert Algorithm(kl_coef=0.1).needs_reference


@pytest.mark.parametrize(
    "values, message",
    [
        ({"loss": "dr_gpro"}, "algorithm.loss=dr_gpro: allowed are grpo, dr_grpo, dapo. Did you mean 'dr_grpo'?"),
        ({"advantage": "zscore"}, "algorithm.advantage=zscore: allowed are group_zscore"),
        ({"aggregation": "mean"}, "algorithm.aggregation=mean: allowed are token_mean"),
        ({"kl": "k4"}, "algorithm.kl=k4: allowed are k1, k2, k3"),
        ({"advantage_eps": -1.0}, "algorithm.advantage_eps=-1.0"),
        ({"clip_low": 0.0}, "algorithm.clip_low=0.0"),
        ({"clip_low": 1.5}, "algorithm.clip_low=1.5"),
        ({"clip_high": float("inf")}, "algorithm.clip_high=inf"),
        ({"kl_coef": float("nan")}, "algorithm.kl_coef=nan"),
        ({"num_epochs": 0}, "algorithm.num_epochs=0: allowed is a whole number >= 1"),
        ({"mini_batches": 1.5}, "algorithm.mini_batches=1.5"),
        ({"loss": "dr_grpo"}, "algorithm.max_sampled_tokens=None"),
        ({"max_sampled_tokens": 128}, "only aggregation=constant uses it"),
    ],
)
def test_what_is_refused(values: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Algorithm(**values)
    assert message in str(caught.value)
