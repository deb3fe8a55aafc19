"""Every loss x aggregation x KL x correction, every advantage: against the papers, by hand, and what must not matter.

`objective` takes the log-probs through the trainer's own path: packing, weights, the objective in chunks.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agentgrpo.core.types import TrainingSample
from agentgrpo.grpo import golden
from agentgrpo.grpo.advantages import ADVANTAGES, GroupRewards
from agentgrpo.grpo.aggregation import AGGREGATIONS
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.correction import CORRECTIONS
from agentgrpo.grpo.golden import GoldenSample
from agentgrpo.grpo.kl import KL_ESTIMATORS
from agentgrpo.grpo.losses import LOSSES
from agentgrpo.preflight.numerics import objective, variants
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.policy import Policy
from agentgrpo.training.trainer import Trainer
from tests.grpo import reference_numpy as paper
from tests.grpo.tiny import exact_model, random_samples, tiny_tokenizer
from tests.thorough import siblings

CPU = torch.device("cpu")
LN2 = math.log(2)


def ours(answers: Sequence[GoldenSample], **keys: Any) -> tuple[float, list[float]]:
    """The objective and its gradient by each log-prob."""
    return objective(answers, Algorithm(**keys, mini_batches=2), CPU, torch.float64)


# --- against the papers


def random_answers(seed: int) -> list[GoldenSample]:
    """Two groups, not equally long, of answers of one to four tokens; ratios and weights on both sides of every
    bound."""
    rng = random.Random(seed)

    def near(values: Sequence[float], spread: float) -> tuple[float, ...]:
        return tuple(v + rng.uniform(-spread, spread) for v in values)

    answers = []
    for group, n in (("a", 3), ("a", 2), ("a", 1), ("b", 4), ("b", 3)):
        old = tuple(rng.uniform(-3.0, -0.2) for _ in range(n))
        one = (rng.uniform(-2, 2),) * n
        advantages = near(one, 2.0) if n == 4 else one
        answers.append(GoldenSample(group, advantages, near(old, 1.5), old, near(old, 1.5), near(old, 1.0)))
    return answers


def published(algorithm: Algorithm, corrected: bool = True) -> paper.Objective:
    """The same in the words of the reference. A null is what the paper says."""

    def value(key: str, default: float | None) -> float | None:
        given: float | None = algorithm.loss_args.get(key)
        return default if given is None else given

    low, high = {"clipped": (0.2, 0.2), "sequence_clipped": (3e-4, 4e-4), "cispo": (None, 4.0)}.get(
        algorithm.loss, (None, None)
    )
    gamma = [value(n, d) for n, d in zip(GAMMA, (2.0, 3.0, 3.0, 2.0), strict=True)]
    return paper.Objective(
        loss=algorithm.loss,
        aggregation=algorithm.aggregation,
        clip_low=value("clip_low", low),
        clip_high=value("clip_high", high),
        clip_dual=value("clip_dual", None),
        tau_positive=value("temperature_positive", 1.0),
        tau_negative=value("temperature_negative", 1.05),
        gamma_positive=tuple(gamma[:2]),
        gamma_negative=tuple(gamma[2:]),
        kl=algorithm.kl if algorithm.kl_coef else None,
        kl_coef=algorithm.kl_coef,
        kl_importance=algorithm.kl_importance,
        correction=None if algorithm.correction == "none" else algorithm.correction,
        cap=algorithm.correction_cap,
        max_tokens=algorithm.max_sampled_tokens,
    )


GAMMA = ("k_positive", "lambda_positive", "k_negative", "lambda_negative")


def papers(answers: Sequence[GoldenSample], o: paper.Objective) -> tuple[float, list[float]]:
    arrays = [
        paper.Answer(
            group=a.group,
            logprobs=np.array(a.policy),
            old=np.array(a.old),
            rollout=np.array(a.rollout),
            reference=np.array(a.reference),
            advantages=np.array(a.advantages),
        )
        for a in answers
    ]
    return paper.value(arrays, o), [float(x) for g in paper.gradient(arrays, o) for x in g]


def difference(found: tuple[float, list[float]], expected: tuple[float, list[float]]) -> float:
    """Of value and gradient, over the largest number of the expected ones."""
    value, gradient = expected
    of_gradient = max(abs(f - e) for f, e in zip(found[1], gradient, strict=True)) / max(map(abs, gradient))
    return max(abs(found[0] - value) / abs(value), of_gradient)


def mixes(loss: str) -> list[dict[str, Any]]:
    """Of one loss every aggregation x KL x correction; importance weights with one aggregation."""
    found = [keys for keys in variants() if keys["loss"] == loss]
    return [k for k in found if k["aggregation"] == "token_mean" or not k.get("kl_importance", False)]


@pytest.mark.parametrize("loss", siblings(LOSSES, quick=2))
def test_every_mix_is_what_the_papers_say(loss: str) -> None:
    """In value and gradient, the trainer's objective and the scalar reference of `agentgrpo check numerics`."""
    answers = random_answers(seed=list(LOSSES).index(loss))
    assert len(mixes(loss)) >= len(AGGREGATIONS) * (1 + len(KL_ESTIMATORS)) * len(CORRECTIONS)
    for keys in mixes(loss):
        algorithm = Algorithm(**keys, mini_batches=2)
        expected = papers(answers, published(algorithm))
        assert difference(objective(answers, algorithm, CPU, torch.float64), expected) < 1e-6, keys
        slopes = golden.gradient(answers, algorithm, corrected=True)
        scalar = golden.value(answers, algorithm, corrected=True), [x for of_answer in slopes for x in of_answer]
        assert difference(scalar, expected) < 1e-6, keys


REWARDS = [[1.0, 0.0, 0.25, 0.5], [0.75, 0.75, 0.75], [0.1, 0.9]]
TERMS = [
    [{"right": 1.0, "cost": 0.0}, {"right": 0.5, "cost": -0.5}, {"right": 0.5, "cost": -0.25},
     {"right": 0.5, "cost": 0.0}],
    [{"right": 0.75, "cost": 0.0}] * 3,
    [{"right": 0.2, "cost": -0.1}, {"right": 1.0, "cost": -0.1}],
]  # fmt: skip
"""The second group has nothing to teach; neither has the cost in the third."""


def credits(name: str, rewards: Sequence[Sequence[float]], eps: float, terms: Any = TERMS) -> list[list[float]]:
    groups = [GroupRewards(totals, of_group) for totals, of_group in zip(rewards, terms, strict=True)]
    return [[math.nan if a is None else a for a in group] for group in ADVANTAGES[name](groups, eps=eps)]


@pytest.mark.parametrize("eps", [1e-6, 0.05])
@pytest.mark.parametrize("name", ADVANTAGES)
def test_every_advantage_is_what_the_papers_say(name: str, eps: float) -> None:
    expected = {
        "group_zscore": paper.group_zscore(REWARDS, eps),
        "group_mean": paper.group_mean(REWARDS, eps),
        "batch_zscore": paper.batch_zscore(REWARDS, eps),
        "leave_one_out": paper.leave_one_out(REWARDS, eps),
        "max_rl": paper.max_rl(REWARDS, eps),
        "per_term": paper.per_term(TERMS, eps),
        "none": REWARDS,
        "accepted": [[1.0, math.nan, math.nan, math.nan], [math.nan] * 3, [math.nan, 1.0]],
    }[name]
    for group, of_paper in zip(credits(name, REWARDS, eps), expected, strict=True):
        assert group == pytest.approx(of_paper, rel=1e-9, abs=1e-12, nan_ok=True)


# --- three tokens by hand

OLD = (-2.0, -1.0, -3.0)
P0, P1 = -2.0 + LN2, -1.0 - LN2
"""Log-probs at ratios 2 and 1/2."""


def by_hand(advantage: float, third_ratio: float, **keys: Any) -> tuple[float, list[float]]:
    """One answer with ratios 2, 1/2 and `third_ratio`; the sum of its losses and the three slopes."""
    policy = (P0, P1, -3.0 + math.log(third_ratio))
    answer = GoldenSample("a", (advantage,) * 3, policy, OLD, OLD, OLD)
    return ours([answer], aggregation="sequence_sum", correction="none", **keys)


@pytest.mark.parametrize(
    "advantage, third_ratio, keys, value, slopes",
    [
        # A > 0: the first is held at 1.28; the second is below the clip and pushed up again, min keeps its ratio
        (3.0, 1.0, {"loss": "clipped", "loss_args": {"clip_high": 0.28}}, -1.28 * 3 - 0.5 * 3 - 3, [0.0, -1.5, -3.0]),
        # A < 0: the first goes on being pushed down, the second is held at 0.8
        (-3.0, 1.0, {"loss": "clipped", "loss_args": {"clip_high": 0.28}}, 2 * 3 + 0.8 * 3 + 3, [6.0, 0.0, 3.0]),
        # the dual clip holds the first at 1.5 |A|
        (-3.0, 1.0, {"loss": "clipped", "loss_args": {"clip_dual": 1.5}}, 1.5 * 3 + 0.8 * 3 + 3, [0.0, 0.0, 3.0]),
        # ... and does nothing where A > 0
        (3.0, 1.0, {"loss": "clipped", "loss_args": {"clip_dual": 1.5}}, -1.2 * 3 - 0.5 * 3 - 3, [0.0, -1.5, -3.0]),
        # the ratios' product is 1.1^3, so s = 1.1 for all three; d(3 s A)/d log p of each = s A
        (3.0, 1.331, {"loss": "sequence_clipped", "loss_args": {"clip_low": 0.2, "clip_high": 0.2}}, -9.9, [-3.3] * 3),
        # the published clip is 4e-4
        (3.0, 1.331, {"loss": "sequence_clipped"}, -3 * 1.0004 * 3, [0.0] * 3),
        (-3.0, 1.331, {"loss": "sequence_clipped"}, 9.9, [3.3] * 3),
        # weights 1.5, 1/2, 1 instead of 2, 1/2, 1, and all three have a gradient
        (
            3.0,
            1.0,
            {"loss": "cispo", "loss_args": {"clip_high": 0.5}},
            -3 * (1.5 * P0 + 0.5 * P1 + 1 * -3),
            [-4.5, -1.5, -3.0],
        ),
        # published: no lower bound, the upper one 5
        (3.0, 6.0, {"loss": "cispo"}, -3 * (2 * P0 + 0.5 * P1 + 5 * (-3 + math.log(6))), [-6.0, -1.5, -15.0]),
        # tau = 1: 4 sigmoid(1) = 2.9242343, 4 sigmoid(-1/2) = 1.5101628, 4 sigmoid(0) = 2; slopes by 4 sigmoid' r:
        # 4 * 0.1966119 * 2 = 1.5728956, 4 * 0.2350037 / 2 = 0.4700075, 4 * 0.25 = 1
        (3.0, 1.0, {"loss": "sapo"}, -3 * (2.9242343 + 1.5101628 + 2), [-4.7186867, -1.4100223, -3.0]),
        # tau = 1.05: 4 / 1.05 sigmoid(1.05) = 2.8219996, sigmoid(-0.525) -> 1.4159383, sigmoid(0) -> 1.9047619; at
        # r = 1 the slope is that of the ratio itself, whatever tau: 4 * 0.1920274 * 2, 4 * 0.2335350 / 2, 4 * 0.25
        (-3.0, 1.0, {"loss": "sapo"}, 3 * (2.8219996 + 1.4159383 + 1.9047619), [4.6086588, 1.4012097, 3.0]),
        # W = 2 * 1/2 * 1.5; A > 0: 1.5^2 exp(3 (1 - 1.5)) = 2.25 exp(-1.5) = 0.5020429
        (3.0, 1.5, {"loss": "vespo"}, -1.5061286 * (P0 + P1 - 3 + math.log(1.5)), [-1.5061286] * 3),
        # A < 0: 1.5^3 exp(2 (1 - 1.5)) = 3.375 exp(-1) = 1.2415931
        (-3.0, 1.5, {"loss": "vespo"}, 3.7247793 * (P0 + P1 - 3 + math.log(1.5)), [3.7247793] * 3),
        (3.0, 1.0, {"loss": "reinforce"}, -3 * (P0 + P1 - 3), [-3.0] * 3),
    ],
    ids=str,
)
def test_three_tokens_by_hand(
    advantage: float, third_ratio: float, keys: dict[str, Any], value: float, slopes: list[float]
) -> None:
    found, gradient = by_hand(advantage, third_ratio, **keys)
    assert found == pytest.approx(value, rel=1e-7)
    assert gradient == pytest.approx(slopes, rel=1e-7, abs=1e-12)


def test_the_aggregations_of_three_tokens_by_hand() -> None:
    """Losses -1, -1 and 4 of two answers, a group each (reinforce: -A log p with A = -1 and 2)."""
    first = GoldenSample("a", (-1.0,) * 2, (-1.0, -1.0), (-1.0,) * 2, (-1.0,) * 2, (-1.0,) * 2)
    second = GoldenSample("b", (2.0,), (-2.0,), (-2.0,), (-2.0,), (-2.0,))
    values = {
        "token_mean": (-1 - 1 + 4) / 3,
        "sequence_mean": ((-1 - 1) / 2 + 4) / 2,
        "prompt_mean": ((-1 - 1) / 2 + 4) / 2,
        "sequence_sum": (-1 - 1 + 4) / 2,
        "constant": (-1 - 1 + 4) / (2 * 10),
    }
    assert values.keys() == AGGREGATIONS.keys()
    for name, value in values.items():
        limit = {"max_sampled_tokens": 10} if name == "constant" else {}
        found, _ = ours([first, second], loss="reinforce", aggregation=name, correction="none", **limit)
        assert found == pytest.approx(value, rel=1e-12)
    # in one group, prompt_mean is token_mean
    found, _ = ours([first, second._replace(group="a")], loss="reinforce", aggregation="prompt_mean", correction="none")
    assert found == pytest.approx(2 / 3, rel=1e-12)


@pytest.mark.parametrize(
    "correction, weights",
    [
        # of tokens 2, 4 and 1/2, of the answer 4; the cap is 3
        ("none", [1.0, 1.0, 1.0]),
        ("token_truncate", [2.0, 3.0, 0.5]),
        ("token_mask", [2.0, 0.0, 0.5]),
        ("sequence_truncate", [3.0, 3.0, 3.0]),
        ("sequence_mask", [0.0, 0.0, 0.0]),
    ],
)
def test_the_corrections_of_three_tokens_by_hand(correction: str, weights: list[float]) -> None:
    rollout = tuple(o - x for o, x in zip(OLD, (LN2, 2 * LN2, -LN2), strict=True))
    answer = GoldenSample("a", (-1.0,) * 3, OLD, OLD, rollout, OLD)
    value, gradient = ours([answer], loss="clipped", aggregation="sequence_sum", correction=correction)
    assert value == pytest.approx(sum(weights), rel=1e-12)
    assert gradient == pytest.approx(weights, rel=1e-12)
    # a factor of W in vespo: 8 of tokens uncapped; its kernel instead of a second weight
    w = {"none": 1.0, "token_truncate": 3.0, "token_mask": 0.0, "sequence_truncate": 3.0, "sequence_mask": 0.0}
    kernel = w[correction] ** 3 * math.exp(2 * (1 - w[correction]))
    _, gradient = ours([answer], loss="vespo", aggregation="sequence_sum", correction=correction)
    assert gradient == pytest.approx([kernel] * 3, rel=1e-12, abs=1e-12)
    # the KL term has no weight: its slope at d = ln 2 is 1 - exp(-ln 2) = 1/2
    far = answer._replace(reference=tuple(o - LN2 for o in OLD), advantages=(0.0,) * 3)
    _, gradient = ours([far], loss="clipped", aggregation="sequence_sum", correction=correction, kl_coef=0.2)
    assert gradient == pytest.approx([0.1] * 3, rel=1e-12)


@pytest.mark.parametrize(
    "kl, weighed, value, slope",
    [
        # d = ln 2; r = 3
        ("k1", False, LN2, 1.0),
        ("k2", False, LN2**2 / 2, LN2),
        ("mse", False, LN2**2 / 2, LN2),
        ("k3", False, LN2 - 0.5, 0.5),
        ("abs", False, LN2, 1.0),
        # (r k)' = r (k + k')
        ("k1", True, 3 * LN2, 3 * (LN2 + 1)),
        ("k2", True, 3 * LN2**2 / 2, 3 * (LN2**2 / 2 + LN2)),
        ("mse", True, 3 * LN2**2 / 2, 3 * (LN2**2 / 2 + LN2)),
        ("k3", True, 3 * (LN2 - 0.5), 3 * LN2),
        ("abs", True, 3 * LN2, 3 * (LN2 + 1)),
    ],
)
def test_every_kl_of_a_token_by_hand(kl: str, weighed: bool, value: float, slope: float) -> None:
    token = GoldenSample("a", (0.0,), (-1.0,), (-1.0 - math.log(3),), (-1.0 - math.log(3),), (-1.0 - LN2,))
    for loss in LOSSES:
        found, gradient = ours(
            [token], loss=loss, aggregation="token_mean", correction="none", kl_coef=0.5, kl=kl, kl_importance=weighed
        )
        assert (found, gradient) == (pytest.approx(0.5 * value, rel=1e-12), pytest.approx([0.5 * slope], rel=1e-12))


# --- what must not matter, through the real trainer

Gradients = list[dict[str, Tensor]]
"""Of each optimizer step, by parameter."""
EVERY_KIND: dict[str, dict[str, Any]] = {
    "clipped": {"loss_args": {"clip_low": 0.05, "clip_high": 0.05}, "kl_coef": 0.2, "kl_importance": True},
    "sequence_clipped": {"loss_args": {"clip_low": 0.05, "clip_high": 0.05}, "correction": "sequence_truncate"},
    "cispo": {"loss_args": {"clip_high": 0.05}, "correction": "token_mask"},
    "sapo": {"kl_coef": 0.2, "kl": "k2", "correction": "token_truncate"},
    "vespo": {"correction": "sequence_truncate"},
    "reinforce": {"correction": "sequence_mask", "kl_coef": 0.2, "kl": "abs"},
}


def algorithm_of(loss: str, **keys: Any) -> Algorithm:
    return Algorithm(**{"loss": loss, "mini_batches": 2, **EVERY_KIND[loss], **keys})


def train(algorithm: Algorithm, samples: Sequence[TrainingSample], **settings: Any) -> tuple[Gradients, list[Tensor]]:
    """The gradients of an update's optimizer steps, and the weights after it."""
    model, steps = exact_model(seed=3), []
    policy = Policy(model=model, tokenizer=tiny_tokenizer())

    def keep(tags: object) -> None:
        steps.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})

    trainer = Trainer(
        policy=policy,
        reference=Policy(model=exact_model(seed=4), tokenizer=tiny_tokenizer()) if algorithm.needs_reference else None,
        optimizer=AdamW(model=model, lr=1e-2, warmup_steps=0),
        algorithm=algorithm,
        total_steps=1,
        sampler_differs=True,
        **settings,
    )
    trainer.update(samples, step=0, guard=keep)
    return steps, [p.detach().clone() for p in model.parameters()]


def assert_same(found: Gradients, expected: Gradients, tolerance: float) -> None:
    """Every step's gradient, relative to its norm."""
    assert len(found) == len(expected) > 0
    for a, b in zip(found, expected, strict=True):
        assert a.keys() == b.keys()
        difference = torch.stack([(a[n] - b[n]).norm() for n in b]).norm()
        assert difference <= tolerance * torch.stack([x.norm() for x in b.values()]).norm()


def trained_on(samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """With log-probs near those of the policy, as another engine would give."""
    policy, rng = Policy(model=exact_model(seed=3), tokenizer=tiny_tokenizer()), random.Random(7)
    noisy = []
    for sample, logprobs in policy.logprobs(samples):
        values = iter(logprobs.tolist())
        near = tuple(next(values) + rng.uniform(-0.5, 0.3) if m else 0.0 for m in sample.loss_mask)
        noisy.append(dataclasses.replace(sample, rollout_logprobs=near))
    return noisy


@pytest.mark.parametrize("loss", siblings(LOSSES, quick=2))
def test_neither_packing_nor_micro_batches_nor_chunks_nor_order_matter(loss: str) -> None:
    """At the second mini-batch the ratios are other than 1. The order does not change a bit."""
    samples, algorithm = trained_on(random_samples(groups=4)), algorithm_of(loss)
    expected, weights = train(algorithm, samples, tokens_per_micro_batch=10_000)
    assert len(expected) == 2
    for tokens, chunk in ((1, 1), (40, 7)):
        found, _ = train(algorithm, samples, tokens_per_micro_batch=tokens, head_chunk_tokens=chunk)
        assert_same(found, expected, 1e-9)
    shuffled = random.Random(1).sample(samples, len(samples))
    assert all(map(torch.equal, train(algorithm, shuffled, tokens_per_micro_batch=10_000)[1], weights))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_no_aggregation_sees_the_micro_batches(aggregation: str) -> None:
    limit = {"max_sampled_tokens": 9} if aggregation == "constant" else {}
    samples, algorithm = trained_on(random_samples(groups=4)), algorithm_of("clipped", aggregation=aggregation, **limit)
    expected, _ = train(algorithm, samples, tokens_per_micro_batch=10_000)
    assert_same(train(algorithm, samples, tokens_per_micro_batch=1)[0], expected, 1e-9)


def rewarded(algorithm: Algorithm, rewards: Callable[[float], float]) -> list[TrainingSample]:
    """Groups of four whose rewards are `rewards` of a random number; the terms are halves of it."""
    rng = random.Random(11)
    samples = trained_on(random_samples(groups=4, size=4))
    groups = [list(group) for _, group in itertools.groupby(samples, key=lambda s: s.group_id)]
    drawn = [[(rng.random(), rng.random()) for _ in group] for group in groups]
    told = [
        GroupRewards(
            totals=[rewards(a) + rewards(b) for a, b in of_group],
            terms=[{"a": rewards(a), "b": rewards(b)} for a, b in of_group],
        )
        for of_group in drawn
    ]
    return [
        dataclasses.replace(sample, advantage=advantage)
        for group, values in zip(groups, algorithm.advantages(told), strict=True)
        for sample, advantage in zip(group, values, strict=True)
        if advantage is not None
    ]


BASELINED = [name for name in ADVANTAGES if name not in ("none", "accepted")]


@pytest.mark.parametrize("advantage", [name for name in BASELINED if name != "max_rl"])
def test_a_shift_of_all_rewards_does_not_matter(advantage: str) -> None:
    algorithm = algorithm_of("clipped", advantage=advantage)
    expected, _ = train(algorithm, rewarded(algorithm, lambda r: r))
    assert_same(train(algorithm, rewarded(algorithm, lambda r: r + 3))[0], expected, 1e-9)


@pytest.mark.parametrize("advantage", ["group_zscore", "batch_zscore", "per_term", "max_rl"])
def test_the_scale_of_rewards_does_not_matter_where_a_deviation_or_the_mean_divides(advantage: str) -> None:
    algorithm = algorithm_of("clipped", advantage=advantage, advantage_eps=0.0)
    expected, _ = train(algorithm, rewarded(algorithm, lambda r: r))
    assert_same(train(algorithm, rewarded(algorithm, lambda r: 20 * r))[0], expected, 1e-9)


def test_a_baseline_is_what_makes_a_shift_harmless() -> None:
    algorithm = algorithm_of("clipped", advantage="none")
    expected, _ = train(algorithm, rewarded(algorithm, lambda r: r))
    with pytest.raises(AssertionError):
        assert_same(train(algorithm, rewarded(algorithm, lambda r: r + 3))[0], expected, 1e-3)


@pytest.mark.parametrize(
    "loss, advantage", [*((loss, "group_zscore") for loss in LOSSES), *(("clipped", name) for name in BASELINED[1:])]
)
def test_groups_with_equal_rewards_change_no_bit(loss: str, advantage: str) -> None:
    algorithm = algorithm_of(loss, advantage=advantage, kl_coef=0.0, kl_importance=False)
    samples = rewarded(algorithm, lambda r: 0.1 + 0.2)
    assert {s.advantage for s in samples} == {0.0}
    steps, weights = train(algorithm, samples)
    assert steps == []
    assert all(map(torch.equal, weights, exact_model(seed=3).parameters()))
