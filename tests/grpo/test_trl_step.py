"""A whole update against TRL's own trainer on the same model, completions and rewards: advantages, a group of zero
variance, masks, denominators, KL, two optimizer steps. `trl_step.py` runs it where TRL is installed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from agentgrpo.core.types import RewardResult, ScoredGroup
from agentgrpo.grpo.advantages import GroupRewards
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.run.parts import StepState
from agentgrpo.run.rollouts import Rollout
from agentgrpo.run.train import samples_of
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.policy import Policy
from agentgrpo.training.reference import frozen_reference
from agentgrpo.training.trainer import Trainer
from tests import builders
from tests.builders import given, sampled
from tests.grpo.test_trl import NEEDS_TRL, PYTHON, TOP
from tests.grpo.tiny import exact_model, random_samples, tiny_tokenizer
from tests.run.tiny_run import TinyRun

pytestmark = [NEEDS_TRL, pytest.mark.slow]
REWARDS = ((0.0, 1.0, 0.25), (0.5, 0.5, 0.5), (1.0, 1.0, 0.0))
"""The second group has zero variance."""
LR, EPS, LONGEST = 1e-2, 1e-3, 24
"""EPS: so large that Adam does not blow up the rounding of tokens without a gradient (TRL's advantages are float32)."""


def trl_zscore(groups: Sequence[GroupRewards]) -> list[list[float | None]]:
    """TRL divides by the deviation of a sample, with n - 1, plus 1e-4; ours is that of the group itself, with n."""
    return [[(x - fmean(g.totals)) / (stdev(g.totals) + 1e-4) for x in g.totals] for g in groups]


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": ({"loss_type": "grpo"}, {}),
    "dapo": (
        {"loss_type": "dapo", "epsilon_high": 0.28},
        {"loss_args": {"clip_high": 0.28}, "aggregation": "token_mean"},
    ),
    "dr_grpo": (
        {"loss_type": "dr_grpo", "scale_rewards": "none", "max_completion_length": LONGEST},
        {"advantage": "group_mean", "aggregation": "constant", "max_sampled_tokens": LONGEST},
    ),
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        {"loss": "sequence_clipped"},
    ),
    "cispo": (
        {"loss_type": "cispo", "epsilon_high": 5.0},  # there the largest weight itself
        {"loss": "cispo", "aggregation": "token_mean"},
    ),
}
"""name -> (TRL's settings, ours)."""
BETAS = (0.0, 0.04)


def weighs_kl(name: str) -> bool:
    """TRL weighs the KL term by the ratio, as ours does where that is one of tokens."""
    return name != "gspo"


def scored() -> list[ScoredGroup]:
    """Each episode samples, reads, samples and reads again."""
    samples, found = iter(random_samples(seed=5, groups=len(REWARDS))), []
    for number, rewards in enumerate(REWARDS):
        task, episodes = builders.task(id=str(number)), []
        for index in range(len(rewards)):
            sample = next(samples)
            tokens = zip(sample.token_ids, sample.loss_mask, strict=True)
            segments = [
                (sampled if mask else given)(*(token for token, _ in run))
                for mask, run in groupby(tokens, key=lambda token: token[1])
            ]
            episodes.append(builders.episode(task, *segments, sample_index=index, metrics={"tool_turns": 0.0}))
        results = tuple(RewardResult(total=r, terms={}, dimensions={}, correctness=0.0) for r in rewards)
        found.append(ScoredGroup(group=builders.group(*episodes), rewards=results))
    return found


def rows_of(group: ScoredGroup) -> list[dict[str, Any]]:
    rows = []
    for episode, reward in zip(group.group.episodes, group.rewards, strict=True):
        [branch], n = episode.branches, len(episode.branches[0].segments[0].token_ids)
        assert reward is not None
        rows.append(
            {
                "prompt": branch.token_ids[:n],
                "completion": branch.token_ids[n:],
                "env_mask": branch.loss_mask[n:],
                "logprobs": branch.logprobs[n:],
                "reward": reward.total,
            }
        )
    return rows


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[float, dict[str, Tensor]]]]:
    """Case -> (loss, gradient) of each optimizer step."""
    folder = tmp_path_factory.mktemp("trl")
    exact_model().save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")
    adam = {"learning_rate": LR, "adam_beta1": 0.9, "adam_beta2": 0.99, "adam_epsilon": EPS, "num_iterations": 2}
    cases = {
        f"{name}-{beta}": {**trl, **adam, "beta": beta, "use_bias_correction_kl": weighs_kl(name)}
        for name, (trl, _) in CASES.items()
        for beta in BETAS
    }
    out = folder / "gradients"
    out.mkdir()
    groups = [rows_of(group) for group in scored()]
    done = subprocess.run(
        [PYTHON, str(Path(__file__).with_name("trl_step.py"))],
        input=json.dumps({"model": str(folder / "model"), "out": str(out), "groups": groups, "cases": cases}),
        capture_output=True,
        text=True,
        check=False,
        cwd=TOP,
    )
    assert done.returncode == 0, done.stderr
    return {
        name: [(loss, load_file(out / name / f"{step}.safetensors")) for step, loss in enumerate(losses)]
        for name, losses in json.loads(done.stdout).items()
    }


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("name", CASES)
def test_an_update_has_the_losses_and_gradients_of_trl(
    peer: dict[str, list[tuple[float, dict[str, Tensor]]]],
    tmp_path: Path,
    name: str,
    beta: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weighed = bool(beta) and weighs_kl(name)
    ours = {"advantage": trl_zscore, **CASES[name][1], "kl_coef": beta, "kl_importance": weighed, "num_epochs": 2}
    model = exact_model()
    optimizer = AdamW(model=model, lr=LR, eps=EPS, warmup_steps=0, final_fraction=1.0, max_grad_norm=1e9)
    reference = frozen_reference(Policy(model=exact_model(), tokenizer=tiny_tokenizer())) if beta else None
    trainer = Trainer(
        policy=Policy(model=model, tokenizer=tiny_tokenizer()),
        reference=reference,
        optimizer=optimizer,
        algorithm=Algorithm(**ours),
        total_steps=1,
    )
    found: list[dict[str, Tensor]] = []
    step = AdamW.step

    def seen(self: AdamW, **kwargs: float) -> None:
        found.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        step(self, **kwargs)

    monkeypatch.setattr(AdamW, "step", seen)
    losses: list[float] = []
    parts = replace(TinyRun(tmp_path).parts(), trainer=trainer)
    chosen = samples_of(parts, 0, Rollout(scored=scored(), tags={}, seconds={}), StepState())
    trainer.update(chosen.samples, step=0, guard=lambda tags: losses.append(tags["loss"]))
    theirs = peer[f"{name}-{beta}"]
    assert len(theirs) == len(found) == 2
    for loss, gradient, (their_loss, their_gradient) in zip(losses, found, theirs, strict=True):
        assert loss == pytest.approx(their_loss, abs=1e-6)
        assert gradient.keys() == their_gradient.keys()
        largest = max(float(g.abs().max()) for g in gradient.values())
        apart = max(float((gradient[n] - their_gradient[n]).abs().max()) for n in gradient)
        assert apart < 1e-6 * max(1.0, largest)
