"""The algorithm node: what it allows, and the YAML that ships."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from inspect import signature
from typing import Any

import hydra
import pytest
import torch
import yaml
from torch import Tensor

from agentgrpo.cli.main import configs_dir
from agentgrpo.config.build import build_node
from agentgrpo.config.compose import to_plain
from agentgrpo.config.values import Positive
from agentgrpo.core.errors import ConfigError, TrainingError
from agentgrpo.grpo.advantages import GroupRewards
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.losses import LOSSES, LossInputs, TokenLoss, log_ratio, per_token

GRPO = {
    "loss": "clipped",
    "loss_args": {},
    "advantage": "group_zscore",
    "advantage_args": {},
    "advantage_eps": 1e-6,
    "credit": "episode",
    "aggregation": "sequence_mean",
    "max_sampled_tokens": None,
    "kl_coef": 0.04,
    "kl": "k3",
    "kl_in": "loss",
    "kl_importance": False,
    "reference": "frozen",
    "reference_decay": None,
    "reference_every": None,
    "correction": "sequence_mask",
    "correction_cap": 3.0,
    "max_staleness": 0,
    "num_epochs": 1,
    "mini_batches": 1,
    "entropy_coef": 0.0,
    "top_entropy_fraction": None,
    "drop_zero_variance": False,
    "mask_truncated": False,
    "replay_groups": 0,
}
"""As published."""
PRESETS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "grpo_token_mean": {"aggregation": "token_mean", "kl_coef": 0.0, "advantage_eps": 0.05},
    "dr_grpo": {"advantage": "group_mean", "aggregation": "constant", "max_sampled_tokens": 3072, "kl_coef": 0.0},
    "dapo": {"loss_args": {"clip_high": 0.28}, "aggregation": "token_mean", "kl_coef": 0.0, "mask_truncated": True},
    "bnpo": {"aggregation": "token_mean", "kl_coef": 0.0},
    "gspo": {"loss": "sequence_clipped", "kl_coef": 0.0, "mini_batches": 4},
    "cispo": {"loss": "cispo", "aggregation": "token_mean", "kl_coef": 0.0, "mini_batches": 4},
    "sapo": {"loss": "sapo", "kl_coef": 0.0, "mini_batches": 4},
    "luspo": {
        "loss": "sequence_clipped",
        "loss_args": {"clip_low": 2e-3, "clip_high": 2.5e-3},
        "aggregation": "sequence_sum",
        "kl_coef": 0.0,
        "mini_batches": 4,
    },
    "vespo": {
        "loss": "vespo",
        "aggregation": "token_mean",
        "kl_coef": 0.0,
        "correction": "token_truncate",
        "mini_batches": 4,
    },
    "rloo": {
        "loss": "reinforce",
        "advantage": "leave_one_out",
        "aggregation": "sequence_sum",
        "kl_coef": 0.03,
        "kl": "k1",
        "kl_in": "reward",
    },
    "max_rl": {"advantage": "max_rl", "aggregation": "token_mean", "kl_coef": 0.0},
    "search_r1": {"aggregation": "token_mean", "kl_coef": 0.001, "entropy_coef": 0.001},
    "mem_alpha": {
        "credit": "branch",
        "loss_args": {"clip_dual": 3.0},
        "aggregation": "token_mean",
        "kl_coef": 0.001,
    },
    "sft": {"loss": "reinforce", "aggregation": "token_mean", "kl_coef": 0.0, "correction": "none"},
    "raft": {
        "loss": "reinforce",
        "advantage": "accepted",
        "aggregation": "token_mean",
        "kl_coef": 0.0,
        "correction": "none",
    },
}
"""What differs from it."""
PUBLISHED: dict[str, dict[str, float | None]] = {
    "clipped": {"clip_low": 0.2, "clip_high": 0.2, "clip_dual": None},
    "sequence_clipped": {"clip_low": 3e-4, "clip_high": 4e-4, "clip_dual": None},
    "cispo": {"clip_low": 1.0, "clip_high": 4.0},
    "sapo": {"temperature_positive": 1.0, "temperature_negative": 1.05},
    "vespo": {"k_positive": 2.0, "lambda_positive": 3.0, "k_negative": 3.0, "lambda_negative": 2.0},
    "reinforce": {},
}


@pytest.mark.parametrize("name", PRESETS)
def test_the_presets_are_the_papers(name: str) -> None:
    with hydra.initialize_config_dir(str(configs_dir()), version_base="1.3"):
        node = to_plain(hydra.compose(f"algorithm/{name}"))["algorithm"]
    assert node == {"name": name, **GRPO, **PRESETS[name]}
    assert dataclasses.asdict(build_node("algorithm", node)) == {**GRPO, **PRESETS[name]}


def test_a_preset_holds_what_differs() -> None:
    files = {p.stem: yaml.safe_load(p.read_text("utf-8")) for p in (configs_dir() / "algorithm").glob("*.yaml")}
    assert files.pop("grpo") == {"name": "grpo", **GRPO}
    assert files == {
        name: {"defaults": ["grpo", "_self_"], "name": name, **keys} for name, keys in PRESETS.items() if keys
    }
    assert dataclasses.asdict(Algorithm()) == GRPO | {"kl_coef": 0.0}


def test_the_defaults_of_a_loss_are_the_published_values() -> None:
    assert {
        name: {p.name: p.default for p in list(signature(loss).parameters.values())[1:]}
        for name, loss in LOSSES.items()
    } == PUBLISHED


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
        ({"loss_args": {"clip_high": 0.5}}, -1.5),
        ({"loss": "sequence_clipped"}, -1.0004),
        ({"loss": "cispo"}, 2.0),
        ({"loss": "cispo", "loss_args": {"clip_high": 0.25}}, 1.25),
        ({"loss": "sapo"}, -4 / (1 + torch.tensor(-1.0).exp().item())),
        ({"loss": "sapo", "loss_args": {"temperature_positive": 2.0}}, -2 / (1 + torch.tensor(-2.0).exp().item())),
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
        ({"loss_args": {"clip_low": 0.0}}, "algorithm.loss_args.clip_low=0.0; a number > 0 and <= 1 is allowed"),
        ({"loss_args": {"clip_low": 1.5}}, "algorithm.loss_args.clip_low=1.5; a number > 0 and <= 1 is allowed"),
        ({"loss_args": {"clip_high": float("inf")}}, "clip_high=inf; a finite number > 0 is allowed"),
        ({"loss_args": {"clip_dual": 1.0}}, "clip_dual=1.0; a finite number > 1, or null is allowed"),
        ({"loss_args": {"clip_high": "0.2"}}, "algorithm.loss_args.clip_high='0.2'; a finite number > 0 is allowed"),
        (
            {"loss": "sapo", "loss_args": {"clip_high": 0.2}},
            "algorithm.loss_args.clip_high; loss=sapo takes temperature_positive, temperature_negative.",
        ),
        (
            {"loss_args": {"clip_hihg": 0.2}},
            "loss=clipped takes clip_low, clip_high, clip_dual. Did",
        ),
        ({"loss_args": {"clip_hihg": 0.2}}, "? To drop a preset's key, write ~algorithm.loss_args.clip_hihg"),
        ({"advantage_args": {"eps": 0.2}}, "algorithm.advantage_args.eps; advantage=group_zscore takes none. To drop"),
        ({"loss": "sapo", "loss_args": {"temperature_negative": 0.0}}, "algorithm.loss_args.temperature_negative=0.0"),
        ({"loss": "vespo", "loss_args": {"lambda_positive": float("nan")}}, "loss_args.lambda_positive=nan; a finite"),
        ({"kl_coef": float("nan")}, "algorithm.kl_coef=nan"),
        ({"entropy_coef": -0.1}, "algorithm.entropy_coef=-0.1"),
        (
            {"top_entropy_fraction": 0.0},
            "algorithm.top_entropy_fraction=0.0; a number > 0 and <= 1, or null is allowed",
        ),
        ({"top_entropy_fraction": 1.2}, "algorithm.top_entropy_fraction=1.2"),
        ({"correction_cap": 0.5}, "algorithm.correction_cap=0.5; a finite number >= 1 is allowed"),
        ({"max_staleness": 2}, "algorithm.max_staleness=2; 0 or 1 is allowed"),
        ({"num_epochs": 0}, "algorithm.num_epochs=0; a whole number >= 1 is allowed"),
        ({"mini_batches": 1.5}, "algorithm.mini_batches=1.5"),
        ({"replay_groups": -1}, "algorithm.replay_groups=-1; a whole number >= 0 is allowed"),
        (
            {"aggregation": "constant"},
            "algorithm.max_sampled_tokens=null with aggregation=constant: it is needed",
        ),
        ({"max_sampled_tokens": 128}, "only aggregation=constant uses it"),
        ({"reference": "ema", "kl_coef": 0.1}, "algorithm.reference_decay=null with reference=ema: it is needed"),
        ({"reference_decay": 0.9, "kl_coef": 0.1}, "reference_decay=0.9 with reference=frozen: only reference=ema"),
        ({"reference": "periodic", "kl_coef": 0.1}, "algorithm.reference_every=null"),
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
            "loss_args": {"clip_dual": 2.0},
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


# --- losses and advantages of the user's own


def squared(x: LossInputs, *, strength: Positive, floor: float = 0.0) -> TokenLoss:
    ratio = log_ratio(x.logprobs, x.old_logprobs).exp()
    loss = strength * (ratio - x.advantages).square() + floor
    return TokenLoss(loss, ratio.detach(), torch.zeros_like(ratio, dtype=torch.bool))


def test_a_loss_of_your_own() -> None:
    algorithm = Algorithm(loss=squared, loss_args={"strength": 2})
    one = torch.ones(1)
    loss, ratio, clipped = algorithm.token_loss(LossInputs(-one, -one, 3 * one, 0 * one, one))
    assert (loss.tolist(), ratio.tolist(), clipped.tolist()) == ([8.0], [1.0], [False])
    assert type(algorithm.loss_args["strength"]) is float


def test_a_loss_gets_whole_samples_unless_it_says_that_it_needs_none() -> None:
    assert Algorithm(loss=squared, loss_args={"strength": 1.0}).has_sample_ratio
    assert {name: Algorithm(loss=name).has_sample_ratio for name in LOSSES} == {
        "clipped": False,
        "sequence_clipped": True,
        "cispo": False,
        "sapo": False,
        "vespo": True,
        "reinforce": False,
    }
    assert {name for name in LOSSES if Algorithm(loss=name).corrects_ratio} == {"vespo"}

    @per_token
    def marked(x: LossInputs) -> TokenLoss:
        return squared(x, strength=1.0)

    assert not Algorithm(loss=marked).has_sample_ratio


def only_a_tensor(x: LossInputs) -> Tensor:
    return -x.advantages * x.logprobs


def one_number(x: LossInputs) -> TokenLoss:
    return TokenLoss(only_a_tensor(x).mean(), x.logprobs.detach(), x.advantages > 9)


def detached(x: LossInputs) -> TokenLoss:
    return TokenLoss(only_a_tensor(x).detach(), x.logprobs.detach(), x.advantages > 9)


def broken(x: LossInputs) -> TokenLoss:
    raise KeyError("nowhere")


@pytest.mark.parametrize(
    ("loss", "args", "message"),
    [
        (
            squared,
            {},
            "algorithm.loss_args.strength has no value, which loss=tests.grpo.test_algorithm:squared needs",
        ),
        (squared, {"strength": 0.0}, "algorithm.loss_args.strength=0.0; a finite number > 0 is allowed"),
        (squared, {"strenght": 1.0}, "takes strength, floor. Did you mean 'strength'? To drop a preset"),
        (only_a_tensor, {}, ":only_a_tensor: tried on two tokens, it returned a tensor of shape [2]; a TokenLoss of "),
        (
            one_number,
            {},
            "it returned TokenLoss(a tensor of shape [], a tensor of shape [2], a tensor of shape [2])",
        ),
        (detached, {}, ":detached: tried on two tokens, it returned a loss without a gradient; it must come from "),
        (broken, {}, "algorithm.loss=tests.grpo.test_algorithm:broken: tried on two tokens, it raised KeyError: 'nowh"),
    ],
)
def test_a_loss_of_your_own_that_cannot_work(loss: Any, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Algorithm(loss=loss, loss_args=args)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def ranks(groups: Sequence[GroupRewards], *, best: float = 1.0) -> list[list[float | None]]:
    """`best` for a group's best, 0 for the others."""
    return [[None if r is None else best * (r == max(x for x in g.totals if x is not None)) for r in g.totals]
            for g in groups]  # fmt: skip


def spread(groups: Sequence[GroupRewards], *, eps: float) -> list[list[float | None]]:
    return [[eps for _ in g.totals] for g in groups]


def test_an_advantage_of_your_own() -> None:
    groups = [GroupRewards([0.0, None, 1.0]), GroupRewards([2.0])]
    assert Algorithm(advantage=ranks).advantages(groups) == [[0.0, None, 1.0], [1.0]]
    assert Algorithm(advantage=ranks, advantage_args={"best": 3}).advantages(groups) == [[0.0, None, 3.0], [3.0]]
    assert Algorithm(advantage=spread, advantage_eps=0.5).advantages([GroupRewards([1.0, 2.0])]) == [[0.5, 0.5]]
    with pytest.raises(ConfigError, match=r"best_of; advantage=tests\.grpo\.test_algorithm:ranks takes best\. "):
        Algorithm(advantage=ranks, advantage_args={"best_of": 3})
    with pytest.raises(
        ConfigError, match=r"credit=turn with advantage=tests\.grpo\.test_algorithm:ranks: credit=turn allows"
    ):
        Algorithm(advantage=ranks, credit="turn")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([[1.0, 2.0]], r"gave \[2\] advantages for groups of \[3\] episodes; one for each is needed"),
        ([[1.0, 0.0, 2.0]], r"gave 0.0 for a reward of None; give a finite number for each reward, and None if"),
        ([[1.0, None, float("nan")]], "gave nan for a reward of 1.0; give a finite number for each reward"),
        ([[1.0, None, None]], "gave None for a reward of 1.0; give a finite number for each reward"),
    ],
)
def test_an_advantage_of_your_own_that_does_not_fit(found: list[list[float | None]], message: str) -> None:
    def mine(groups: Sequence[GroupRewards]) -> list[list[float | None]]:
        return found

    with pytest.raises(TrainingError, match=message):
        Algorithm(advantage=mine).advantages([GroupRewards([0.0, None, 1.0])])
