"""The training step against padded rows with full logits and plain autograd, and its laws."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config

from agentgrpo.core.errors import ConfigError, TrainingError
from agentgrpo.core.types import TrainingSample
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.training import attention
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.policy import Policy, fitting_tokens
from agentgrpo.training.reference import frozen_reference
from agentgrpo.training.trainer import Trainer
from tests.grpo.tiny import exact_model, plain_logprobs, random_samples, tiny_model, tiny_tokenizer, training_sample
from tests.thorough import siblings

TOKEN_MEAN = Algorithm(aggregation="token_mean")


class RecordingAdamW(AdamW):
    """Keeps the gradients that it was asked to apply."""

    def step(self, *, lr: float, gradient_norm: float) -> None:
        self.gradients = {n: p.grad.clone() for n, p in self._parameters.items() if p.grad is not None}
        super().step(lr=lr, gradient_norm=gradient_norm)


def make_trainer(model: PreTrainedModel, algorithm: Algorithm = TOKEN_MEAN, **kwargs: object) -> Trainer:
    policy = Policy(model=model, tokenizer=tiny_tokenizer())
    optimizer = RecordingAdamW(model=model, lr=1e-2, warmup_steps=0)
    reference = frozen_reference(policy) if algorithm.needs_reference else None
    settings = {"policy": policy, "reference": reference, "optimizer": optimizer, "algorithm": algorithm}
    return Trainer(**{**settings, "total_steps": 10, **kwargs})  # type: ignore[arg-type]


def gradient_of(trainer: Trainer, samples: Sequence[TrainingSample]) -> dict[str, Tensor]:
    trainer.update(samples, step=0)
    gradients: dict[str, Tensor] = trainer.optimizer.gradients  # type: ignore[attr-defined]
    return gradients


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """|a - b| / |b| over all tensors together."""
    assert a.keys() == b.keys()
    difference = math.sqrt(sum(float((a[n] - b[n]).double().square().sum()) for n in a))
    return difference / math.sqrt(sum(float(b[n].double().square().sum()) for n in b))


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def state(trainer: Trainer) -> dict[str, Tensor]:
    """Everything an update may change."""
    parameters = {f"model.{n}": p.detach().clone() for n, p in trainer.policy.model.named_parameters()}
    return parameters | {n: t.clone() for n, t in trainer.optimizer.state_tensors().items()}


def padded_gradient(
    model: PreTrainedModel, samples: Sequence[TrainingSample], temperature: float = 1.0
) -> dict[str, Tensor]:
    """Policy gradient of -mean over all loss tokens of advantage * logprob, by rows, padding and full logits."""
    model.zero_grad()
    logprobs = plain_logprobs(model, samples, temperature)
    total = sum(len(x) for x in logprobs)
    sum(-s.advantage * x.sum() / total for s, x in zip(samples, logprobs, strict=True)).backward()  # type: ignore[union-attr]
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return gradients


@pytest.mark.parametrize("short", [0, 1000])
@pytest.mark.parametrize("family, kv_heads", [("qwen3", 4), ("qwen3", 2), ("llama", 4), ("llama", 2)])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_packed_gradient_equals_padded_rows_with_full_logits(
    monkeypatch: pytest.MonkeyPatch, short: int, family: str, kv_heads: int, temperature: float
) -> None:
    monkeypatch.setattr(attention, "SHORT", short)  # plain products, padded blocks
    samples = random_samples()
    for build, tolerance in ((tiny_model, 1e-5), (exact_model, 1e-12)):
        model = build(family, kv_heads=kv_heads)
        expected = padded_gradient(model, samples, temperature)
        gradients = gradient_of(make_trainer(model, temperature=temperature), samples)
        assert distance(gradients, expected) < tolerance


@pytest.mark.parametrize("short", [0, 1000])
def test_untied_heads_too(monkeypatch: pytest.MonkeyPatch, short: int) -> None:
    monkeypatch.setattr(attention, "SHORT", short)  # plain products, padded blocks
    model = exact_model(tied=False)
    expected = padded_gradient(model, random_samples())
    gradients = gradient_of(make_trainer(model), random_samples())
    assert "lm_head.weight" in gradients
    assert distance(gradients, expected) < 1e-12


def test_zero_advantage_samples_are_skipped_exactly_and_stay_in_the_denominator() -> None:
    samples = [dataclasses.replace(s, advantage=0.0) if s.sample_index else s for s in random_samples()]
    model = exact_model()
    expected = padded_gradient(model, samples)
    trainer = make_trainer(model)
    assert distance(gradient_of(trainer, samples), expected) < 1e-12
    used = sum(sum(s.loss_mask) for s in samples if s.advantage)
    assert trainer.update(samples, step=1).tokens_trained == used < sum(sum(s.loss_mask) for s in samples)


@pytest.mark.parametrize("kl_coef, skipped", [(0.0, True), (0.1, False)])
def test_skipping_changes_no_bit_and_is_off_where_another_term_has_a_gradient(
    monkeypatch: pytest.MonkeyPatch, kl_coef: float, skipped: bool
) -> None:
    """One row per micro-batch: in a larger one, which rows stand beside each other moves the last bits of a product."""
    samples = [dataclasses.replace(s, advantage=0.0) if s.sample_index else s for s in random_samples()]
    algorithm = Algorithm(aggregation="token_mean", kl_coef=kl_coef)
    trainer = make_trainer(tiny_model(), algorithm, tokens_per_micro_batch=1)
    trainer.update(random_samples(), step=0)  # away from the reference, where the KL term has no gradient
    metrics = trainer.update(samples, step=1)
    gradients = trainer.optimizer.gradients
    monkeypatch.setattr(Algorithm, "skips_zero_advantage", False)
    whole = make_trainer(tiny_model(), algorithm, tokens_per_micro_batch=1)
    whole.update(random_samples(), step=0)
    all_tokens = whole.update(samples, step=1).tokens_trained
    assert same_bits(gradients, whole.optimizer.gradients)
    assert all_tokens == sum(sum(s.loss_mask) for s in samples)
    assert (metrics.tokens_trained < all_tokens) == skipped


def reference_weights(samples: Sequence[TrainingSample], aggregation: str) -> list[float]:
    n = [sum(s.loss_mask) for s in samples]
    if aggregation == "token_mean":
        return [1 / sum(n)] * len(n)
    if aggregation == "sequence_mean":
        return [1 / len(n) / x for x in n]
    return [1 / len(n) / 12] * len(n)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "constant", "token_mean"])
@pytest.mark.parametrize("kl", siblings([None, "k3", "k1", "k2"], quick=2))
def test_two_epochs_of_two_mini_batches_equal_the_formula_written_out(aggregation: str, kl: str | None) -> None:
    """Ratios, clip, KL, denominators per optimizer step, and AdamW, in float64 from start to end."""
    samples = random_samples(groups=4, size=2)
    algorithm = Algorithm(
        aggregation=aggregation,
        loss_args={"clip_low": 0.02, "clip_high": 0.03},
        kl_coef=0.3 if kl else 0.0,
        kl=kl or "k3",
        num_epochs=2,
        mini_batches=2,
        max_sampled_tokens=12 if aggregation == "constant" else None,
    )
    start, model, plain = (exact_model(kv_heads=2, seed=3) for _ in range(3))
    # a reference that differs from the policy, so that the KL term has a gradient
    with torch.no_grad():
        start.model.norm.weight.mul_(1.1)
    reference = frozen_reference(Policy(model=start, tokenizer=tiny_tokenizer())) if kl else None
    trainer = make_trainer(
        model, algorithm, reference=reference, temperature=0.7, tokens_per_micro_batch=30, head_chunk_tokens=4
    )
    metrics = trainer.update(samples, step=0)

    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, betas=(0.9, 0.99), weight_decay=0.0)
    parts = [[s for s in samples if s.group_id in names] for names in (("g0", "g2"), ("g1", "g3"))]
    old = [[x.detach() for x in plain_logprobs(plain, part, 0.7)] for part in parts]
    ref = [[x.detach() for x in plain_logprobs(start, part, 0.7)] for part in parts]
    losses, clipped, num_tokens, ratios = [], 0, 0, [0.0]
    for _ in range(2):
        for part, part_old, part_ref in zip(parts, old, ref, strict=True):
            total = torch.zeros((), dtype=torch.float64)
            rows = zip(
                part,
                plain_logprobs(plain, part, 0.7),
                part_old,
                part_ref,
                reference_weights(part, aggregation),
                strict=True,
            )
            for sample, logprobs, old_row, ref_row, weight in rows:
                for new, o, r in zip(logprobs, old_row, ref_row, strict=True):
                    ratio, a = (new - o).exp(), sample.advantage
                    held = min(max(ratio.item(), 0.98), 1.03)
                    is_clipped = held * a < ratio.item() * a
                    term = torch.tensor(-held * a, dtype=torch.float64) if is_clipped else -ratio * a
                    d = new - r
                    if kl:
                        term = term + 0.3 * {"k1": d, "k2": d * d / 2, "k3": (-d).exp() - 1 + d}[kl]
                    total = total + weight * term
                    clipped, num_tokens = clipped + is_clipped, num_tokens + 1
                    ratios.append(ratio.item())
            optimizer.zero_grad()
            total.backward()
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            optimizer.step()
            losses.append(total.item())

    moved = [torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (model, plain)]
    torch.testing.assert_close(moved[0], moved[1], rtol=1e-6, atol=1e-8)  # the clip factor is float32
    assert metrics.optimizer_steps == 4
    assert metrics.loss == pytest.approx(sum(losses) / 4, rel=1e-6, abs=1e-8)
    assert metrics.clip_fraction == pytest.approx(clipped / num_tokens)
    assert metrics.clip_fraction > 0
    assert metrics.ratio_max == pytest.approx(max(ratios), rel=1e-6)
    assert (metrics.kl is None) == (kl is None)


@pytest.mark.parametrize("short", [0, 1000])
def test_neither_micro_batches_nor_chunks_nor_order_change_the_gradient(
    monkeypatch: pytest.MonkeyPatch, short: int
) -> None:
    monkeypatch.setattr(attention, "SHORT", short)  # plain products, padded blocks
    samples = random_samples(groups=4)
    whole = gradient_of(make_trainer(exact_model()), samples)
    for budget, chunk in ((1, 1), (25, 7), (60, 1000)):
        trainer = make_trainer(exact_model(), tokens_per_micro_batch=budget, head_chunk_tokens=chunk)
        shuffled = random.Random(budget).sample(samples, len(samples))
        assert distance(gradient_of(trainer, shuffled), whole) < 1e-12


def test_an_update_is_repeatable_bit_for_bit_whatever_the_order_of_the_samples() -> None:
    samples = random_samples()
    states = []
    for seed in range(3):
        trainer = make_trainer(tiny_model())
        for step in range(3):
            trainer.update(random.Random(seed).sample(samples, len(samples)), step=step)
        states.append(state(trainer))
    assert same_bits(states[0], states[1])
    assert same_bits(states[0], states[2])


def twins() -> PreTrainedModel:
    """Tokens 7 and 8 look alike as inputs, but not as labels."""
    model = tiny_model(tied=False)
    with torch.no_grad():
        model.model.embed_tokens.weight[8] = model.model.embed_tokens.weight[7]
    return model


def test_the_labels_of_untrained_tokens_do_not_matter_and_those_of_trained_tokens_do() -> None:
    def gradient(observation: int, action: int) -> dict[str, Tensor]:
        sample = training_sample(([2, 3], 0), ([4, action], 1), ([observation, 5], 0), ([6, 1], 1), ([9], 0))
        gradients = gradient_of(make_trainer(twins()), [sample])
        # The input rows of the twins are where their own gradients go: the same sum, another row.
        rows = gradients["model.embed_tokens.weight"]
        gradients["model.embed_tokens.weight"] = torch.cat([rows[:7], rows[7:9].sum(0, keepdim=True), rows[9:]])
        return gradients

    base = gradient(observation=7, action=4)
    assert same_bits(gradient(observation=8, action=4), base)
    assert distance(gradient(observation=7, action=8), gradient(observation=7, action=7)) > 0.1


def test_tokens_after_the_last_trained_one_do_not_matter() -> None:
    def gradient(*after: int) -> dict[str, Tensor]:
        return gradient_of(make_trainer(tiny_model()), [training_sample(([2, 3], 0), ([4, 5], 1), (after, 0))])

    assert same_bits(gradient(), gradient(6, 7))


def test_the_rollout_logprobs_of_untrained_tokens_do_not_matter() -> None:
    samples = random_samples()
    noisy = [
        dataclasses.replace(
            s,
            rollout_logprobs=tuple(x if m else math.nan for x, m in zip(s.rollout_logprobs, s.loss_mask, strict=True)),
        )
        for s in samples
    ]
    assert same_bits(gradient_of(make_trainer(tiny_model()), noisy), gradient_of(make_trainer(tiny_model()), samples))


def test_the_stop_token_has_a_gradient_even_as_the_only_sampled_token() -> None:
    stop_only = training_sample(([2, 3], 0), ([1], 1))
    with_stop = training_sample(([2, 3], 0), ([4, 1], 1))
    for sample, at in ((stop_only, -1), (with_stop, -1)):
        trainer = make_trainer(tiny_model())
        [(_, before)] = trainer.policy.logprobs([sample])
        trainer.update([sample], step=0)
        [(_, after)] = trainer.policy.logprobs([sample])
        assert after[at] > before[at] + 0.01


def test_a_positive_advantage_makes_a_sample_likelier_and_a_negative_one_less_likely() -> None:
    good = training_sample(([2, 3], 0), ([4, 5], 1), advantage=1.0)
    bad = training_sample(([2, 3], 0), ([6, 7], 1), advantage=-1.0, index=1)
    trainer = make_trainer(tiny_model())
    before = [float(x.sum()) for _, x in trainer.policy.logprobs([good, bad])]
    trainer.update([good, bad], step=0)
    after = [float(x.sum()) for _, x in trainer.policy.logprobs([good, bad])]
    assert after[0] > before[0]
    assert after[1] < before[1]


def test_bfloat16_weights_are_trained_on_float32_losses() -> None:
    samples = random_samples()
    trainer = make_trainer(tiny_model().bfloat16())
    [(_, logprobs), *_] = trainer.policy.logprobs(samples)
    assert logprobs.dtype == torch.float32
    gradients = gradient_of(trainer, samples)
    assert {g.dtype for g in gradients.values()} == {torch.bfloat16}
    assert distance(gradients, padded_gradient(tiny_model(), samples)) < 0.05


def test_the_metrics_of_an_on_policy_update() -> None:
    samples = random_samples()
    trainer = make_trainer(exact_model())
    logprobs = {s: x.tolist() for s, x in trainer.policy.logprobs(samples)}
    exact = [with_logprobs(s, logprobs[s]) for s in samples]
    gradients = padded_gradient(trainer.policy.model, samples)
    metrics = trainer.update(exact, step=3)
    n = sum(sum(s.loss_mask) for s in samples)
    assert metrics.loss == pytest.approx(-sum(s.advantage * sum(s.loss_mask) for s in samples) / n)
    assert metrics.lr == pytest.approx(1e-2 * (1 - 0.9 * 3 / 9))
    assert metrics.gradient_norm == pytest.approx(math.sqrt(sum(float(g.square().sum()) for g in gradients.values())))
    assert metrics.logprob_gap_max < 1e-12
    assert metrics.tags() == {
        "loss": metrics.loss,
        "lr": metrics.lr,
        "gradients/norm": metrics.gradient_norm,
        "policy/entropy": metrics.entropy,
        "policy/clip_fraction": 0.0,
        "policy/ratio_max": 1.0,
        "policy/logprob_gap_max": metrics.logprob_gap_max,
        "policy/staleness_max": 3.0,
        "tokens/trained": n,
        "tokens/forwarded": metrics.tokens_forwarded,
        "optimizer_steps": 1.0,
    }
    assert 0 < metrics.entropy < math.log(40)
    unshared = sum(max(i for i, m in enumerate(s.loss_mask) if m) for s in samples)
    assert metrics.tokens_forwarded == unshared - sum(s.num_prompt_tokens for s in samples if s.sample_index)


def test_the_staleness_is_that_of_the_oldest_sample_that_is_trained_on() -> None:
    samples = [
        dataclasses.replace(
            s, policy_version={"g0": 4, "g1": 3, "g2": 1}[s.group_id], advantage=float(s.group_id < "g2")
        )
        for s in random_samples()
    ]
    assert make_trainer(tiny_model()).update(samples, step=4).staleness_max == 1  # g2 has no advantage
    assert make_trainer(tiny_model(), Algorithm(kl_coef=0.1)).update(samples, step=4).staleness_max == 3


def with_logprobs(sample: TrainingSample, logprobs: Sequence[float]) -> TrainingSample:
    values = iter(logprobs)
    return dataclasses.replace(sample, rollout_logprobs=tuple(next(values) if m else 0.0 for m in sample.loss_mask))


@pytest.mark.parametrize("algorithm", [TOKEN_MEAN, Algorithm(num_epochs=3)], ids=["on-policy", "off-policy"])
def test_the_gap_to_the_rollout_is_seen_wherever_it_is(algorithm: Algorithm) -> None:
    samples = random_samples()
    policy = Policy(model=tiny_model(), tokenizer=tiny_tokenizer())
    logprobs = [x.tolist() for _, x in policy.logprobs(samples)]
    exact = [with_logprobs(s, x) for s, x in zip(samples, logprobs, strict=True)]
    assert make_trainer(tiny_model(), algorithm).update(exact, step=0).logprob_gap_max < 1e-6
    logprobs[4][-1] += 0.01
    shifted = [with_logprobs(s, x) for s, x in zip(samples, logprobs, strict=True)]
    gap = make_trainer(tiny_model(), algorithm, tokens_per_micro_batch=20).update(shifted, step=0).logprob_gap_max
    assert gap == pytest.approx(0.01, abs=1e-5)


@pytest.mark.parametrize("stale", [{"g0"}, {"g0", "g1", "g2"}, set()], ids=["some", "all", "none"])
@pytest.mark.parametrize("tokens", [8, 4096])
def test_the_gap_of_older_weights_is_told_apart(stale: set[str], tokens: int) -> None:
    """Stale samples are far from the trainer, as they may be; fresh ones are not."""
    samples = [dataclasses.replace(s, policy_version=2 if s.group_id in stale else 3) for s in random_samples()]
    policy = Policy(model=tiny_model(), tokenizer=tiny_tokenizer())
    logprobs = [[x + 0.5 * (s.policy_version == 2) for x in found.tolist()] for s, found in policy.logprobs(samples)]
    shifted = [with_logprobs(s, x) for s, x in zip(samples, logprobs, strict=True)]
    algorithm = Algorithm(max_staleness=1, kl_coef=0.1)
    trainer = make_trainer(tiny_model(), algorithm, tokens_per_micro_batch=tokens, sampler_differs=True)
    told: list[dict[str, float]] = []
    tags = trainer.update(shifted, step=3, guard=lambda seen: told.append(dict(seen))).tags()
    for found in (tags, *told):
        gaps = {tag: value for tag, value in found.items() if "gap" in tag}
        assert gaps == (
            ({"policy/logprob_gap_max": pytest.approx(0.0, abs=1e-6)} if len(stale) < 3 else {})
            | ({"policy/stale_logprob_gap_max": pytest.approx(0.5, abs=1e-5)} if stale else {})
        )


def test_the_first_epoch_off_policy_is_exactly_on_policy() -> None:
    trainer = make_trainer(tiny_model(), Algorithm(aggregation="token_mean", mini_batches=2))
    one_group = [s for s in random_samples() if s.group_id == "g0"]
    metrics = trainer.update(one_group, step=0)
    assert metrics.ratio_max == 1.0
    assert metrics.optimizer_steps == 1
    on_policy = make_trainer(tiny_model())
    on_policy.update(one_group, step=0)
    assert same_bits(state(trainer), state(on_policy))


def test_the_kl_to_the_start_is_zero_before_the_first_step_and_grows() -> None:
    trainer = make_trainer(tiny_model(), Algorithm(kl_coef=0.1))
    kl = [trainer.update(random_samples(), step=step).kl for step in range(3)]
    assert kl[0] == 0.0
    assert 0.0 < kl[1] < kl[2]


def test_with_a_kl_term_samples_without_advantage_are_trained() -> None:
    trainer = make_trainer(tiny_model(), Algorithm(kl_coef=0.1))
    trainer.update(random_samples(), step=0)
    before = state(trainer)
    still = [dataclasses.replace(s, advantage=0.0) for s in random_samples()]
    metrics = trainer.update(still, step=1)
    assert metrics.optimizer_steps == 1
    assert not same_bits(state(trainer), before)


@pytest.mark.parametrize("algorithm", [TOKEN_MEAN, Algorithm(num_epochs=2, mini_batches=2)])
def test_samples_without_a_signal_change_nothing_and_still_count_as_a_step(algorithm: Algorithm) -> None:
    trainer = make_trainer(tiny_model(), algorithm)
    before = state(trainer)
    for samples in ([], [dataclasses.replace(s, advantage=0.0) for s in random_samples()]):
        metrics = trainer.update(samples, step=9)
        assert metrics.tags() == {
            "loss": 0.0,
            "lr": pytest.approx(1e-3),
            "gradients/norm": 0.0,
            "tokens/trained": 0.0,
            "tokens/forwarded": 0.0,
            "optimizer_steps": 0.0,
        }
        assert same_bits(state(trainer), before)


def poisoned(name: str) -> list[TrainingSample]:
    """Samples with a number that is not finite in the named place."""
    samples = random_samples()
    if name.startswith("advantage"):
        samples[4] = dataclasses.replace(samples[4], advantage=math.nan if "nan" in name else math.inf)
    elif name.startswith("rollout"):
        at = samples[4].loss_mask.index(1)
        values = [-math.inf if i == at else x for i, x in enumerate(samples[4].rollout_logprobs)]
        samples[4] = dataclasses.replace(samples[4], rollout_logprobs=tuple(values))
    return samples


@pytest.mark.parametrize("algorithm", [TOKEN_MEAN, Algorithm(num_epochs=2, mini_batches=2, kl_coef=0.1)])
@pytest.mark.parametrize(
    "name, message",
    [
        ("advantage nan", "step 7, sample g1/1: its advantage is nan"),
        ("advantage inf", "step 7, sample g1/1: its advantage is inf"),
        ("rollout logprob", "step 7, sample g1/1: a rollout log-prob is -inf"),
        ("weight nan", r"step 7, epoch 0, mini-batch 0: the loss is nan"),
    ],
)
def test_what_is_not_finite_is_refused_and_leaves_no_trace(algorithm: Algorithm, name: str, message: str) -> None:
    trainer = make_trainer(tiny_model(), algorithm)
    trainer.update(random_samples(), step=0)  # moments and step counters to lose
    if name == "weight nan":
        with torch.no_grad():
            trainer.policy.model.model.layers[1].mlp.up_proj.weight[3, 3] = math.nan
    before = state(trainer)
    with pytest.raises(TrainingError, match=message):
        trainer.update(poisoned(name), step=7)
    after = state(trainer)
    assert all(torch.equal(after[n].nan_to_num(7.0), t.nan_to_num(7.0)) for n, t in before.items())
    assert all(p.grad is None for p in trainer.policy.model.parameters())


def test_a_gradient_that_overflows_behind_a_finite_loss_is_refused() -> None:
    trainer = make_trainer(tiny_model())
    loud = [dataclasses.replace(s, advantage=s.advantage * 1e38) for s in random_samples()]
    before = state(trainer)
    with pytest.raises(TrainingError, match="step 2, epoch 0, mini-batch 0: the gradient norm is inf"):
        trainer.update(loud, step=2)
    assert same_bits(state(trainer), before)


def test_a_refusal_in_a_later_mini_batch_undoes_the_earlier_ones() -> None:
    trainer = make_trainer(tiny_model(), Algorithm(mini_batches=3))
    trainer.update(random_samples(), step=0)
    loud = [dataclasses.replace(s, advantage=1e38) if s.group_id == "g2" else s for s in random_samples()]
    before = state(trainer)
    with pytest.raises(TrainingError, match="step 1, epoch 0, mini-batch 2"):
        trainer.update(loud, step=1)
    assert same_bits(state(trainer), before)
    metrics = trainer.update(random_samples(), step=1)  # and it can go on
    assert metrics.optimizer_steps == 3


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    algorithm = Algorithm(kl_coef=0.05, num_epochs=2)
    batches = [random_samples(seed) for seed in range(5)]
    straight = make_trainer(tiny_model(), algorithm)
    metrics = [straight.update(b, step=i) for i, b in enumerate(batches)]

    first = make_trainer(tiny_model(), algorithm)
    for step in range(2):
        first.update(batches[step], step=step)
    first.policy.save(tmp_path / "model")
    save_file(first.optimizer.state_tensors(), tmp_path / "optimizer.safetensors")

    model = type(first.policy.model).from_pretrained(tmp_path / "model")
    resumed = make_trainer(
        model, algorithm, reference=frozen_reference(Policy(model=tiny_model(), tokenizer=tiny_tokenizer()))
    )
    resumed.optimizer.load_state_tensors(load_file(tmp_path / "optimizer.safetensors"))
    assert [resumed.update(batches[step], step=step) for step in range(2, 5)] == metrics[2:]
    assert same_bits(state(resumed), state(straight))


@pytest.mark.parametrize(
    "algorithm, settings, message",
    [
        (Algorithm(), {"temperature": 0.0}, "temperature=0.0"),
        (Algorithm(), {"tokens_per_micro_batch": 0}, "tokens_per_micro_batch=0"),
        (Algorithm(), {"head_chunk_tokens": 0}, "head_chunk_tokens=0"),
        (Algorithm(), {"total_steps": 0}, "total_steps=0"),
        (Algorithm(kl_coef=0.1), {"reference": None}, "kl_coef=0.1 without a reference"),
    ],
)
def test_what_is_refused(algorithm: Algorithm, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer(tiny_model(), algorithm, **settings)
    policy = Policy(model=tiny_model(), tokenizer=tiny_tokenizer())
    with pytest.raises(ConfigError, match=r"kl_coef=0.0 with a reference"):
        make_trainer(tiny_model(), Algorithm(), reference=policy)


@pytest.mark.parametrize(
    "sizes, tokens",
    [
        ((4, 128, 352, 1024), 4096),  # 71 kB a token: 17,054 would fit
        ((8, 512, 1408, 8192), 2122),
        ((8, 512, 1408, 151_936), 1861),
        ((24, 896, 4864, 151_936), 1024),  # 242 would fit
    ],
)
def test_a_micro_batch_keeps_about_a_gib(sizes: tuple[int, int, int, int], tokens: int) -> None:
    layers, hidden, ffn, vocabulary = sizes
    config = Qwen3Config(num_hidden_layers=layers, hidden_size=hidden, intermediate_size=ffn, vocab_size=vocabulary)
    assert fitting_tokens(config, 256) == tokens
